/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the two halves of a selection: selection_filter.c decides which tensors and items go out, selection.c under
 * which names and dtypes. */
#ifndef CKPT_SELECTION_IMPL_H
#define CKPT_SELECTION_IMPL_H

#include "base/names.h"
#include "engine/rename.h"
#include "engine/selection.h"
#include "engine/source_impl.h"

/* Whether a rename has an effect. SHADOWED: an earlier FROM matches every name that this one matches. */
enum rename_use { UNMATCHED, SHADOWED, USED };

struct choice {
    const struct fsdpck_source *src;
    const struct fsdpck_select *select;
    struct fsdpck_selection *out;
    struct fsdpck_names names; /* of the output: position, or ntensors + position for items */
    bool flat_only;            /* only names outside all trees */
    char *tree;                /* the tree that goes out; NULL: all */
    bool *kept;                /* (tensors of the source) the tensor goes out */
    int64_t *position;         /* (tensors of the source) position of its bytes in the selection, or -1 */
    enum rename_use *renamed;  /* (select->nrename) */
    struct fsdpck_error *err;
};

/* Returns tensor `ordinal` of the source; borrowed. */
static inline struct fsdpck_named selection_tensor(const struct choice *c, size_t ordinal)
{
    const struct fsdpck_tensor *t = fsdpck_source_tensor(c->src, ordinal);
    return (struct fsdpck_named){ t->name, t->path, t->npath };
}

/* Chooses the tree, by select->tree or the policy: fills c->tree or c->flat_only, and both in c->out. FSDPCK_ERR_USAGE
 * if several trees qualify. */
int fsdpck_selection_choose_tree(struct choice *c, enum fsdpck_tree_policy policy);
/* Returns whether include, exclude and the tree keep a tensor or an item. */
bool fsdpck_selection_keeps(const struct choice *c, const struct fsdpck_named *n);
/* Returns whether include and exclude keep it, and the tree alone leaves it behind. */
bool fsdpck_selection_tree_leaves(const struct choice *c, const struct fsdpck_named *n);
/* Fills c->kept, c->position with -1, and c->out->nleft_tensors. FSDPCK_ERR_USAGE if nothing is kept, or a glob matches
 * nothing in the tree.
 */
int fsdpck_selection_filter(struct choice *c);

#endif
