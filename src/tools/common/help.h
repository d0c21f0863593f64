/* SPDX-License-Identifier: Apache-2.0 */
/* Help texts out of the tables that parse. */
#ifndef TOOLS_HELP_H
#define TOOLS_HELP_H

#include "common/option_table.h"

extern const struct option help_option; /* of every verb, and in no table */

void help_print_verb(const struct command_line *line);

#endif
