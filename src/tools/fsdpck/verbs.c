/* SPDX-License-Identifier: Apache-2.0 */
/* fsdpck: the table of its verbs. */
#include "commands.h"
#include "common/tool.h"

static const struct command commands[] = {
    { .name = "convert", .run = cmd_convert, .summary = "convert any source to a sharded checkpoint directory" },
    { .name = "reshard",
      .run = cmd_reshard,
      .summary = "change the number of ranks or the mesh of a sharded checkpoint" },
    { .name = "export", .run = cmd_export, .summary = "write Hugging Face safetensors: a folder or one file" },
    { .name = "export-lora",
      .run = cmd_export_lora,
      .summary = "write the LoRA adapter of a checkpoint, for PEFT and others" },
    { .name = "merge-lora",
      .run = cmd_merge_lora,
      .summary = "merge an adapter into its base, as a folder or sharded" },
    { .name = "average", .run = cmd_average, .summary = "average checkpoints, as a folder or sharded" },
    { .name = "ls",
      .run = cmd_ls,
      .summary = "list tensors, dtypes, shapes, placements, files and left-over temporaries" },
    { .name = "verify", .run = cmd_verify, .summary = "check a checkpoint and report every problem" },
    { .name = "doctor", .run = cmd_doctor, .summary = "find the defects of a model folder, from headers and JSON" },
    { .name = "diff", .run = cmd_diff, .summary = "compare two checkpoints of any kind and sharding" },
    { .name = "plan", .run = cmd_plan, .summary = "show what each rank would read" },
    { .name = "cat", .run = cmd_cat, .summary = "print one tensor as numbers or bytes" },
    { .name = "clean", .run = cmd_clean, .summary = "remove left-over temporaries of writers that are gone" },
};

const struct tool the_tool = {
    .name = "fsdpck",
    .summary = "convert, check and read sharded checkpoints of large models",
    .notes = "fsdpck shards a model for any number of ranks or any device mesh, and reshards, verifies, compares and "
             "exports it again. Tensors are streamed within the budget of --memory, whatever the size of the model.\n"
             "A source is a safetensors file, a Hugging Face folder, a torch.save file or a folder of its shards, a "
             "folder with one torch.save file for each rank, a PyTorch DCP directory, or a checkpoint of fsdpck; its "
             "kind is detected from its content. org/name is a model in the local Hugging Face cache.\n"
             "A list is separated by commas. GLOB is a pattern as in the shell, such as 'model.layers.*', where * "
             "stands for any text; quote it. SIZE is a number of bytes, or one with a unit: 4096, 64KiB, 5GB.\n"
             "Results go to standard output, progress and errors to standard error. With --json, the result is one "
             "JSON object. An existing output is never overwritten without --force, and then only after the new one "
             "is complete.",
    .commands = commands,
    .ncommands = sizeof commands / sizeof commands[0],
};
