/* SPDX-License-Identifier: Apache-2.0 */
/* Help texts, made from the tables that parse the command line. */
#ifndef TOOLS_HELP_H
#define TOOLS_HELP_H

#include "common/option_table.h"

enum { HELP_NBYTES = 512 };

extern const struct option help_option; /* every verb has it, though no table lists it */

/* Writes the help of an option with its default, as every form of the documentation has it. Returns text. */
const char *help_option_text(const struct option *o, char text[HELP_NBYTES]);

void help_print_verb(const struct command_line *line);

#endif
