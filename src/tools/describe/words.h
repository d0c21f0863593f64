/* SPDX-License-Identifier: Apache-2.0 */
/* Common to the shell completions: the words that may follow an option. */
#ifndef TOOLS_WORDS_H
#define TOOLS_WORDS_H

#include <stdbool.h>

#include "common/options.h"

bool words_has_path(const struct option *o);    /* its value is a file or a folder: "FILE", "auto|never|DIR" */
bool words_has_setting(const struct option *o); /* its value is a key of the config and a value */
bool words_is_repeated(const struct option *o);
/* The literal words of its value, a blank between them, on stdout; returns whether there are any. */
bool words_put(const struct option *o);

/* Text in '…' of a POSIX shell or of fish, without the quotes themselves. */
void words_put_quoted(const char *text, const char *quote);

/* Calls put with each option of the verb, --help too. */
void words_each_option(const struct command_line *line, void (*put)(const struct option *o));

#endif
