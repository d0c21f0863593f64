/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the ordinal of a name: an open hash table over strings that the caller owns. */
#ifndef CKPT_NAMES_H
#define CKPT_NAMES_H

#include <fsdpck/error.h>

struct fsdpck_names {
    struct names_slot *slots;
    size_t nslots, count;
};

/* Adds name -> ordinal. The string must outlive the table. *old gets the ordinal that already has this name, or
 * SIZE_MAX if it was new (and is now added). */
int fsdpck_names_add(struct fsdpck_names *n, const char *name, size_t ordinal, size_t *old, struct fsdpck_error *err);
size_t fsdpck_names_find(const struct fsdpck_names *n, const char *name); /* SIZE_MAX: not found */
void fsdpck_names_free(struct fsdpck_names *n);

#endif
