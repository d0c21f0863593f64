/* SPDX-License-Identifier: Apache-2.0 */
/* A tool in other forms than --help: man pages and shell completions, written on stdout by programs that only the build
 * runs. They call the tool's own verbs with --help, so that every form has the option tables that the tool parses with.
 */
#ifndef TOOLS_DESCRIBE_H
#define TOOLS_DESCRIBE_H

#include "common/options.h"
#include "common/tool.h"

/* Each may be NULL: nothing is written. */
struct form {
    const char *name;
    void (*begin)(const struct tool *tool);
    void (*verb)(const struct command_line *line); /* once for each verb, or for the one that was asked for */
    void (*end)(const struct tool *tool);
};

extern const struct form form_man, form_bash, form_zsh, form_fish;

/* The parts of a description that only one tool has. */
struct describe_more {
    /* Calls put with each word that the value of a KEY=VALUE option may begin with: "train.max_steps=". NULL: there is
     * no such option. */
    void (*settings)(void (*put)(const char *word));
    const struct form *forms; /* (nforms) */
    size_t nforms;
    const char *exit_no; /* what exit code 1 means; NULL: there is none */
    const char *also;    /* man pages beside those of the verbs: "fsdptrain-config(5)" */
};

extern const struct describe_more describe_more; /* of the tool that is linked */

#endif
