/* SPDX-License-Identifier: Apache-2.0 */
/* Help texts, made from the tables that parse the command line. */
#ifndef TOOLS_HELP_H
#define TOOLS_HELP_H

#include "common/option_table.h"

extern const struct option help_option; /* every verb has it, though no table lists it */

void help_print_verb(const struct command_line *line);

#endif
