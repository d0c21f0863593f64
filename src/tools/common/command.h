/* SPDX-License-Identifier: Apache-2.0 */
/* A verb of a program: a function in cmd_VERB.c that parses its arguments, calls the library, prints, and returns the
 * exit code. */
#ifndef TOOLS_COMMAND_H
#define TOOLS_COMMAND_H

struct command_line;

struct command {
    const char *name;
    int (*run)(const struct command *self, int argc, char **argv); /* argv[0] is the first argument after the verb */
    const char *summary;
    /* Writes the answer to --help on stdout; NULL: help_print_verb() does. */
    void (*describe)(const struct command_line *line);
};

extern const char *tool_name; /* name of the program; every message on stderr begins with it */

/* Exit codes. fsdpck_error_exit_code() maps errors of the library to them. */
enum { EXIT_DONE = 0, EXIT_NO = 1, EXIT_USAGE = 2, EXIT_REFUSED = 3, EXIT_SYSTEM = 4 };

#endif
