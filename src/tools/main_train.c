/* fsdptrain: the table of its verbs. */
#include "tool.h"

static const struct command commands[] = {
    { "run", cmd_run, "train: full or LoRA, on N local ranks, the same bits at any N" },
};

int main(int argc, char **argv)
{
    const struct tool tool = { "fsdptrain", commands, sizeof commands / sizeof commands[0], "plan|sample|tokenize|init" };
    return tool_main(&tool, argc, argv);
}
