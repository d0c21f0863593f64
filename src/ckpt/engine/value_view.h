/* SPDX-License-Identifier: Apache-2.0 */
/* Value views: sources some of whose tensors are computed, band by band, from tensors of other sources while they are
 * read. Dequantizing is one, averages are another; casts and base + adapter can be others.
 *
 * A view sets `values` in the ops of its source. Its catalogue lists the computed tensors with the shape and dtype that
 * compute() gives; every reader (transfer, box reads, plans) then reads them like stored ones, and a view may stand on
 * another view. A tensor for which has() is false is stored: extents() locates it, as in any source. A computed tensor
 * has no place in a file: extents() refuses it, so that a view which only moves bytes cannot take its inputs for it.
 *
 * What a view reads, it reads through workspaces of its own on its inputs, which live in the state that begin() makes:
 * one state for each thread's workspace, so compute() needs no lock. */
#ifndef CKPT_VALUE_VIEW_H
#define CKPT_VALUE_VIEW_H

#include "engine/source_impl.h"

struct fsdpck_fetch;

/* A box of a tensor seen as a matrix: its last dimension is the columns, all others together are the rows. */
struct fsdpck_matrix_box {
    uint64_t row, nrows, col, ncols;
};

typedef int (*fsdpck_input_fn)(void *ctx, struct fsdpck_source *input, size_t ordinal, struct fsdpck_error *err);

struct fsdpck_values {
    bool (*has)(const struct fsdpck_source *src, size_t ordinal); /* never asked about an alias */
    /* Visits every tensor that a computed one is computed from. */
    int (*inputs)(struct fsdpck_source *src, size_t ordinal, fsdpck_input_fn visit, void *ctx,
                  struct fsdpck_error *err);
    int (*begin)(struct fsdpck_source *src, void **state, struct fsdpck_error *err);
    void (*end)(void *state); /* NULL does nothing */
    /* Maximum memory of a state and everything in it. */
    uint64_t (*nbytes)(const struct fsdpck_source *src);
    /* Computes a box that is not empty, to rows that lie `stride` bytes apart; elements of a row are dense. Adds what
     * it reads to the counts of f. If f->dry, counts and computes nothing. */
    int (*compute)(struct fsdpck_fetch *f, void *state, size_t ordinal, const struct fsdpck_matrix_box *box, void *dst,
                   uint64_t stride, struct fsdpck_error *err);
    /* Whether a tensor costs little once those listed before it were computed: it is taken some lanes later. NULL:
     * none. */
    bool (*late)(const struct fsdpck_source *src, size_t ordinal);
    /* As fsdpck_checks_finish(), for other sources than the one that the view was made of. NULL: it has none. */
    int (*finish)(struct fsdpck_source *src, uint64_t *read_nbytes, struct fsdpck_error *err);
};

/* Returns whether the tensor is computed. */
static inline bool fsdpck_is_computed(const struct fsdpck_source *src, size_t ordinal)
{
    return src->ops->values && src->ops->values->has(src, ordinal);
}

#endif
