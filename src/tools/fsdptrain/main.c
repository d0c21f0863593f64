/* fsdptrain: the table of its verbs. */
#include "commands.h"
#include "common/tool.h"

static const struct command commands[] = {
    { "run", cmd_run, "train: full or LoRA, on N local ranks, the same bits at any N" },
    { "plan", cmd_plan, "show the memory and the traffic of a rank before anything starts" },
    { "init", cmd_init, "write a config with sensible values for this machine, model and data" },
    { "sample", cmd_sample, "go on from a prompt, with or without an adapter" },
    { "tokenize", cmd_tokenize, "show ids, tokens and loss mask of a text or of conversations" },
};

int main(int argc, char **argv)
{
    const struct tool tool = { "fsdptrain", commands, sizeof commands / sizeof commands[0], NULL };
    return tool_main(&tool, argc, argv);
}
