/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps names and nested keys consistent: drops a tree, replaces a prefix, names a sibling. The arena owns strings and
 * arrays. */
#ifndef CKPT_RENAME_H
#define CKPT_RENAME_H

#include <fsdpck/tensor.h>

#include "base/arena.h"

struct fsdpck_named {
    const char *name;
    const struct fsdpck_key *path; /* (npath) */
    uint32_t npath;
};

/* Returns the number of leading keys which, joined by dots, spell `tree` and have at least one key after them; 0: the
 * name is not in the tree. */
uint32_t fsdpck_named_in_tree(const struct fsdpck_named *n, const char *tree);
/* Drops the first nkeys (< npath) keys; the name becomes the rest, joined by dots. */
int fsdpck_named_drop(struct fsdpck_arena *a, struct fsdpck_named *n, uint32_t nkeys, struct fsdpck_error *err);
/* The name begins with `from`: replaces it by `to`. Keys before the change are kept; a name that is not its keys joined
 * by dots becomes a single key. */
int fsdpck_named_replace_prefix(struct fsdpck_arena *a, struct fsdpck_named *n, const char *from, const char *to,
                                struct fsdpck_error *err);
/* Makes a second name for `n`: nested like it if it begins with the same keys, else a single key. */
int fsdpck_named_sibling(struct fsdpck_arena *a, const struct fsdpck_named *n, const char *name,
                         struct fsdpck_named *out, struct fsdpck_error *err);
/* Returns a key as it appears in names: itself, or the decimal digits of a list position in buf. */
const char *fsdpck_key_text(const struct fsdpck_key *key, char buf[24]);

#endif
