/* fsdpck: the table of its verbs. */
#include "commands.h"
#include "common/tool.h"

static const struct command commands[] = {
    { "convert", cmd_convert, "any source to a sharded checkpoint directory" },
    { "reshard", cmd_reshard, "a sharded checkpoint to another number of ranks or another mesh" },
    { "export", cmd_export, "to Hugging Face safetensors: a folder or one file" },
    { "export-lora", cmd_export_lora, "a LoRA adapter out of any checkpoint, for PEFT and others" },
    { "merge-lora", cmd_merge_lora, "base and adapter to full weights, as a folder or sharded" },
    { "ls", cmd_ls, "list tensors, dtypes, shapes, placements, files, left-over temporaries" },
    { "verify", cmd_verify, "check a checkpoint and report every problem" },
    { "diff", cmd_diff, "compare two checkpoints of any kind and sharding" },
    { "plan", cmd_plan, "show what each rank would read" },
    { "cat", cmd_cat, "print one tensor as numbers or bytes" },
    { "clean", cmd_clean, "remove left-over temporaries of writers that are gone" },
};

int main(int argc, char **argv)
{
    const struct tool tool = { "fsdpck", commands, sizeof commands / sizeof commands[0], NULL };
    return tool_main(&tool, argc, argv);
}
