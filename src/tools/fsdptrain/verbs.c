/* SPDX-License-Identifier: Apache-2.0 */
/* fsdptrain: the table of its verbs. */
#include "commands.h"
#include "common/tool.h"

static const struct command commands[] = {
    { .name = "run", .run = cmd_run, .summary = "train a model, fully or with LoRA, on N local ranks" },
    { .name = "plan", .run = cmd_plan, .summary = "show the memory and the traffic of a rank before a run" },
    { .name = "init", .run = cmd_init, .summary = "write a config that fits this machine, model and data" },
    { .name = "sample", .run = cmd_sample, .summary = "continue a prompt, with or without an adapter" },
    { .name = "tokenize",
      .run = cmd_tokenize,
      .summary = "show ids, tokens and loss mask of a text or of conversations" },
    { .name = "report", .run = cmd_report, .summary = "show runs: one HTML file, or their metrics as CSV" },
    { .name = "top", .run = cmd_top, .summary = "look at a run from another terminal" },
    { .name = "ui", .run = cmd_ui, .summary = "serve a page with a queue of runs" },
    { .name = "serve", .run = cmd_serve, .summary = "train and sample adapters for clients of the Tinker API" },
    { .name = "keep", .run = cmd_keep, .summary = "keep memory for the ranks of this host, as `run --hosts` asks" },
};

const struct tool the_tool = {
    .name = "fsdptrain",
    .summary = "train a language model, sharded over ranks",
    .notes = "fsdptrain trains Llama, Mistral, Qwen2 and Qwen3 models, fully or with LoRA, in N local processes or "
             "in those that Open MPI's mpirun starts. The processes of one host hold the model once between them. "
             "Losses, gradient norms and weights have the same bits for any number of ranks and threads.\n"
             "A JSON file configures a run; fsdptrain-config(5) lists its keys. Checkpoints are those of fsdpck(5).",
    .commands = commands,
    .ncommands = sizeof commands / sizeof commands[0],
};
