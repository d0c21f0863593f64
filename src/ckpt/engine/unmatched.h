/* SPDX-License-Identifier: Apache-2.0 */
/* The error for a user's pattern without a match: it names the option, the pattern and the nearest name. */
#ifndef CKPT_UNMATCHED_H
#define CKPT_UNMATCHED_H

#include <fsdpck/select.h>

/* pattern: a glob, or (prefix) the beginning of names. Zero-initialise the rest, then pass it every name. */
struct fsdpck_unmatched {
    const char *pattern;
    bool prefix;
    const char *nearest; /* borrowed from the names passed */
    unsigned distance;
};

void fsdpck_unmatched_try(struct fsdpck_unmatched *u, const char *name);
/* Returns FSDPCK_ERR_USAGE. file: what was searched. */
int fsdpck_unmatched_error(const struct fsdpck_unmatched *u, const char *file, const char *option,
                           struct fsdpck_error *err);

#endif
