/* SPDX-License-Identifier: Apache-2.0 */
/* Describes a tool as man pages and shell completions, on stdout. Only the build runs these programs. They call the
 * tool's own verbs with --help, so that every form uses the option tables that the tool parses with. */
#ifndef TOOLS_DESCRIBE_H
#define TOOLS_DESCRIBE_H

#include "common/options.h"
#include "common/tool.h"

/* A function that is NULL writes nothing. */
struct form {
    const char *name;
    void (*begin)(const struct tool *tool);
    void (*verb)(const struct command_line *line); /* called for each verb, or for the requested one */
    void (*end)(const struct tool *tool);
};

extern const struct form form_man, form_bash, form_zsh, form_fish;

/* The parts of a description that only one tool has. */
struct describe_more {
    /* Calls put with each possible start of a KEY=VALUE option's value: "train.max_steps=". NULL: no such option. */
    void (*settings)(void (*put)(const char *word));
    const struct form *forms; /* (nforms) */
    size_t nforms;
    const char *exit_no; /* meaning of exit code 1 for all verbs together; NULL: not used */
    const char *also[4]; /* man pages besides those of the verbs: "fsdptrain-config(5)"; ends with NULL */
};

extern const struct describe_more describe_more; /* of the tool that is linked */

#endif
