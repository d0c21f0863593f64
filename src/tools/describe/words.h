/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the shell completions: the words that may follow an option. */
#ifndef TOOLS_WORDS_H
#define TOOLS_WORDS_H

#include <stdbool.h>

#include "common/options.h"

bool words_has_path(const struct option *o);    /* its value is a file or a folder: "FILE", "auto|never|DIR" */
bool words_has_setting(const struct option *o); /* its value is KEY=VALUE for the config */
bool words_is_repeated(const struct option *o);
/* Prints the literal words of an option's value, separated by blanks. Returns false if there are none. */
bool words_put(const struct option *o);

/* Prints text for use inside '…' of a POSIX shell or of fish. quote: the escape of a quote. */
void words_put_quoted(const char *text, const char *quote);

/* Calls put with each option of the verb, including --help. */
void words_each_option(const struct command_line *line, void (*put)(const struct option *o));

#endif
