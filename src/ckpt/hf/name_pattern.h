/* SPDX-License-Identifier: Apache-2.0 */
/* Patterns of tensor names in which '#' stands for a layer number. */
#ifndef CKPT_NAME_PATTERN_H
#define CKPT_NAME_PATTERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fsdpck_layer_number {
    const char *digits; /* in the name that was matched */
    int ndigits;        /* 0: the pattern has no '#' */
    uint64_t value;
};

/* Reads a decimal number of up to 9 digits without leading zeros; returns what follows it, NULL: there is none. */
const char *fsdpck_name_index(const char *s, uint64_t *out);
/* Returns what follows the pattern at the beginning of the name; NULL: the name does not begin so. */
const char *fsdpck_name_after(const char *pattern, const char *name, struct fsdpck_layer_number *layer);
/* Returns whether the whole name matches the pattern. */
bool fsdpck_name_matches(const char *pattern, const char *name, struct fsdpck_layer_number *layer);
/* Writes the pattern with this number, cut off at nbytes including NUL. */
void fsdpck_name_fill(const char *pattern, const struct fsdpck_layer_number *layer, char *out, size_t nbytes);

#endif
