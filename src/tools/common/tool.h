/* SPDX-License-Identifier: Apache-2.0 */
/* A program: its name and its table of verbs. */
#ifndef TOOLS_TOOL_H
#define TOOLS_TOOL_H

#include <stddef.h>

#include "common/command.h"

struct tool {
    const char *name;
    const char *summary;            /* its purpose, in one line */
    const char *notes;              /* for its man page: paragraphs, one per line */
    const struct command *commands; /* (ncommands) */
    size_t ncommands;
    const char *later; /* verbs planned for a later version: "a|b"; NULL: none */
};

extern const struct tool the_tool; /* of the program that is linked */

int tool_main(const struct tool *tool, int argc, char **argv);

#endif
