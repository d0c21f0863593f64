/* SPDX-License-Identifier: Apache-2.0 */
/* Parses one value of the command line: size, count, number, choice, comma-separated list. */
#ifndef TOOLS_VALUES_H
#define TOOLS_VALUES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A list of owned strings. Zero-initialise. */
struct strings {
    char **at; /* (count) */
    size_t count;
};

bool strings_add(struct strings *s, const char *text, size_t nbytes); /* adds a copy; false: out of memory */
void strings_free(struct strings *s);
/* Adds the parts of text between its commas. A comma inside (), [] or after a backslash does not separate. */
bool strings_add_list(struct strings *s, const char *text);

/* Each returns true if the whole text is such a value, and sets *out only then. */
bool value_size(const char *text, uint64_t *out);         /* "4096", "64KiB", "5GB", "1.5GiB": bytes, rounded down */
bool value_count(const char *text, uint32_t *out);        /* decimal, 1 … 2^32-1 */
bool value_exit_code(const char *text, uint32_t *out);    /* decimal, 0 … 255 */
bool value_number(const char *text, double *out);         /* finite, not negative */
bool value_choice(const char *text, const char *choices); /* one of "a|b|c"; false for NULL choices */

#endif
