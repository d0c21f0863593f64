/* SPDX-License-Identifier: Apache-2.0 */
/* The error for a pattern of the user's that matches nothing: it names the option, the pattern and the nearest name. */
#ifndef CKPT_UNMATCHED_H
#define CKPT_UNMATCHED_H

#include <fsdpck/select.h>

/* pattern: a glob, or (prefix) the beginning of names. Zero-initialise the rest, then show it every name. */
struct fsdpck_unmatched {
    const char *pattern;
    bool prefix;
    const char *nearest; /* borrowed from what it was shown */
    unsigned distance;
};

void fsdpck_unmatched_try(struct fsdpck_unmatched *u, const char *name);
/* FSDPCK_ERR_USAGE. file: what was searched. */
int fsdpck_unmatched_error(const struct fsdpck_unmatched *u, const char *file, const char *option,
                           struct fsdpck_error *err);

#endif
