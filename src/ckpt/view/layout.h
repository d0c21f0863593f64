/* SPDX-License-Identifier: Apache-2.0 */
/* Layout views: sources whose tensors are described by boxes of another source's tensors. They rename, slice,
 * transpose, stack and concatenate, and change no element. Nothing is copied: the extents of a view's tensor are those
 * of the boxes, moved to their places, so a read through the view costs what the plain source's would. A tensor made
 * of a computed one is computed too (engine/value_view.h), box by box. */
#ifndef CKPT_LAYOUT_H
#define CKPT_LAYOUT_H

#include "engine/source_impl.h"

#define FSDPCK_LAYOUT_NO_DIM UINT32_MAX

/* A box of a view's tensor that shows a box of an inner one. */
struct fsdpck_layout_piece {
    size_t inner;                  /* ordinal of the inner tensor */
    const uint64_t *offset, *size; /* (ndim of the view's tensor) */
    const uint64_t *from;          /* (ndim of the inner one) where the inner box begins */
    /* (ndim of the view's tensor) the dimension of the inner one that this dimension runs along, each at most once;
     * FSDPCK_LAYOUT_NO_DIM: none, its size is 1. The inner box has size 1 in the dimensions that are not named. */
    const uint32_t *dims;
};

struct fsdpck_layout;

/* Turns src into a view without tensors, for the functions below to fill. The view owns the source as it was. After a
 * failure of any of them src can only be closed. */
int fsdpck_layout_begin(struct fsdpck_source *src, struct fsdpck_layout **out, struct fsdpck_error *err);
/* The source that the view stands on. */
struct fsdpck_source *fsdpck_layout_inner(struct fsdpck_layout *l);
/* Adds an inner tensor as it is, under this name (NULL: its own). A second name stays one if the first was added. */
int fsdpck_layout_pass(struct fsdpck_layout *l, size_t inner, const char *name, struct fsdpck_error *err);
/* Adds a tensor made of pieces, which cover it and do not overlap. Copies everything. */
int fsdpck_layout_add(struct fsdpck_layout *l, const char *name, enum fsdpck_dtype dtype, uint32_t ndim,
                      const uint64_t *shape, const struct fsdpck_layout_piece *pieces, size_t npieces,
                      struct fsdpck_error *err);
/* Adds a second name of a tensor that was added: target is its ordinal in src. */
int fsdpck_layout_alias(struct fsdpck_layout *l, size_t target, const char *name, struct fsdpck_error *err);

#endif
