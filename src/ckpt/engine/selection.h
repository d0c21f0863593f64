/* SPDX-License-Identifier: Apache-2.0 */
/* The result of applying struct fsdpck_select to a source: the list of tensors and items to write, with their output
 * names. */
#ifndef CKPT_SELECTION_H
#define CKPT_SELECTION_H

#include <fsdpck/select.h>

#include "base/arena.h"

struct fsdpck_chosen {
    const char *name;
    const struct fsdpck_key *path;
    uint32_t npath;
    size_t source;           /* ordinal of the tensor in the source that holds the bytes (an alias is resolved) */
    int64_t alias_of;        /* position in the selection of the stored entry, or -1: this entry is stored */
    enum fsdpck_dtype dtype; /* of the output */
};

struct fsdpck_chosen_item {
    const char *name;
    const struct fsdpck_key *path;
    uint32_t npath;
    size_t source; /* ordinal of the item in the source */
};

struct fsdpck_selection {
    struct fsdpck_chosen *tensors; /* (ntensors) in the source's order; aliases after their target */
    size_t ntensors;
    struct fsdpck_chosen_item *items; /* (nitems) */
    size_t nitems;
    const char *tree; /* the tree that the tensors are in, as "app.model"; NULL: no tree was chosen */
    bool flat_only;   /* only names outside all trees were chosen */
    /* What the choice of a tree left out. Whatever include and exclude leave out does not count. */
    size_t nleft_tensors, nleft_items;
    struct fsdpck_arena arena;
};

enum fsdpck_tree_policy {
    FSDPCK_TREE_KEEP, /* select.tree NULL: keep everything, drop nothing (convert, reshard) */
    FSDPCK_TREE_MODEL /* select.tree NULL: the only tree, or "model", or the flat names beside other trees; otherwise an
                         error names the trees */
};

/* A tree is the first key of the nested paths of tensors with more than one key; a flat name belongs to none.
 * include/exclude match the full source name; items follow the same globs and tree. These are FSDPCK_ERR_USAGE: two
 * tensors with one output name, an alias to a tensor that is not selected, a pattern without a match (see
 * fsdpck/select.h), an empty selection. If the target of an alias is not selected but the alias is, the alias is stored
 * instead. */
int fsdpck_selection_make(const struct fsdpck_source *src, const struct fsdpck_select *select,
                          enum fsdpck_tree_policy policy, struct fsdpck_selection *out, struct fsdpck_error *err);
void fsdpck_selection_free(struct fsdpck_selection *s);
/* Gives a note if a tree was chosen and others were left behind. A user who named the tree needs none. */
void fsdpck_selection_note_left(const struct fsdpck_selection *s, const struct fsdpck_select *select,
                                const struct fsdpck_options *opt);

#endif
