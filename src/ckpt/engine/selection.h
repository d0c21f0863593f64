/* SPDX-License-Identifier: Apache-2.0 */
/* The outcome of struct fsdpck_select on a source: the list of tensors and items that go out, named as they will be
 * called. */
#ifndef CKPT_SELECTION_H
#define CKPT_SELECTION_H

#include <fsdpck/select.h>

#include "base/arena.h"

struct fsdpck_chosen {
    const char *name;
    const struct fsdpck_key *path;
    uint32_t npath;
    size_t source;           /* ordinal of the tensor in the source that holds the bytes (an alias is resolved) */
    int64_t alias_of;        /* position in the selection of the entry that is stored, or -1: this one is */
    enum fsdpck_dtype dtype; /* as it goes out */
};

struct fsdpck_chosen_item {
    const char *name;
    const struct fsdpck_key *path;
    uint32_t npath;
    size_t source; /* ordinal of the item in the source */
};

struct fsdpck_selection {
    struct fsdpck_chosen *tensors; /* (ntensors) in the source's order; aliases after what they name */
    size_t ntensors;
    struct fsdpck_chosen_item *items; /* (nitems) */
    size_t nitems;
    struct fsdpck_arena arena;
};

enum fsdpck_tree_policy {
    FSDPCK_TREE_KEEP, /* select.tree NULL: everything, nothing is dropped (convert, reshard) */
    FSDPCK_TREE_MODEL /* select.tree NULL: the only tree, or "model", or the flat names beside other trees; several
                         otherwise: an error naming them */
};

/* A tree is the first key of the nested paths of tensors with more than one key; a flat name belongs to none. Selected
 * by include/exclude on the full source name; items follow the same globs and tree. Two tensors that end with one name,
 * an alias to something not selected, a pattern that matches nothing (see fsdpck/select.h), or nothing selected at all
 * are FSDPCK_ERR_USAGE. When the target of an alias is left out but the alias is not, the alias is stored instead. */
int fsdpck_selection_make(const struct fsdpck_source *src, const struct fsdpck_select *select,
                          enum fsdpck_tree_policy policy, struct fsdpck_selection *out, struct fsdpck_error *err);
void fsdpck_selection_free(struct fsdpck_selection *s);

#endif
