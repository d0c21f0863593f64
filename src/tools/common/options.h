/* SPDX-License-Identifier: Apache-2.0 */
/* Parses the command line of a verb by its option tables. */
#ifndef TOOLS_OPTIONS_H
#define TOOLS_OPTIONS_H

#include "common/option_table.h"
#include "common/usage.h"

enum { OPTIONS_OK = -1, MAX_POSITIONALS = 4 };

/* Fills the groups' values and positional (one entry per word in `positionals`). Returns OPTIONS_OK, or the exit code
 * after it has printed the help or a usage error. options_free() must release the lists in every case. */
int options_parse(const struct command_line *line, int argc, char **argv, const char **positional);
void options_free(const struct command_line *line);

#endif
