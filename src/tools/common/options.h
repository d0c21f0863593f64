/* SPDX-License-Identifier: Apache-2.0 */
/* Parses the command line of a verb by its option tables. */
#ifndef TOOLS_OPTIONS_H
#define TOOLS_OPTIONS_H

#include "common/option_table.h"
#include "common/usage.h"

enum { OPTIONS_OK = -1, MAX_POSITIONALS = 4 };

/* Fills the groups' values, first with the defaults, and positional (one entry per word in `positionals`; if one of
 * them repeats, one per argument and NULL after the last, so at most argc + MAX_POSITIONALS). Returns OPTIONS_OK, or
 * the exit code after it has printed the help or a usage error. options_free() must release the lists in every case. */
int options_parse(const struct command_line *line, int argc, char **argv, const char **positional);
void options_free(const struct command_line *line);

/* The usual body of a verb: parses the command line, calls run with args (the verb's own struct, which the groups'
 * values are in) and the positionals, and releases the lists. Returns the exit code. */
int options_run(const struct command_line *line, int argc, char **argv,
                int (*run)(void *args, const char *const *positional), void *args);

#endif
