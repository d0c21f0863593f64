/* SPDX-License-Identifier: Apache-2.0 */
/* Parses the command line of a verb by its option tables. */
#ifndef TOOLS_OPTIONS_H
#define TOOLS_OPTIONS_H

#include "common/option_table.h"
#include "common/usage.h"

enum { OPTIONS_OK = -1, MAX_POSITIONALS = 4 };

/* Fills the groups' values and positional (as many as `positionals` names). Returns OPTIONS_OK, or the exit code where
 * everything was said: help asked for, or wrong usage (one line on stderr). In every case options_free() releases the
 * lists. */
int options_parse(const struct command_line *line, int argc, char **argv, const char **positional);
void options_free(const struct command_line *line);

#endif
