/* SPDX-License-Identifier: Apache-2.0 */
/* A program: its name and its table of verbs. */
#ifndef TOOLS_TOOL_H
#define TOOLS_TOOL_H

#include <stddef.h>

#include "common/command.h"

struct tool {
    const char *name;
    const char *summary;            /* what it is for, on one line */
    const char *notes;              /* for its man page: paragraphs, one a line */
    const struct command *commands; /* (ncommands) */
    size_t ncommands;
    const char *later; /* verbs that a later version will have: "a|b"; NULL: none */
};

extern const struct tool the_tool; /* of the program that is linked */

int tool_main(const struct tool *tool, int argc, char **argv);

#endif
