/* SPDX-License-Identifier: Apache-2.0 */
/* For value views (value_view.h): reads what a tensor is computed from. */
#ifndef CKPT_VALUE_INPUTS_H
#define CKPT_VALUE_INPUTS_H

#include "engine/value_view.h"
#include "engine/workspace.h"

/* Reads the box (offset, size) of a tensor, stored or computed, dense to dst, by the workspace of an
 * input, and adds what was read to the counts of f. */
int fsdpck_values_input(struct fsdpck_fetch *f, struct fsdpck_fetch *input, size_t ordinal, const uint64_t *offset,
                        const uint64_t *size, void *dst, struct fsdpck_error *err);
/* The same, to dst whose elements lie `strides` bytes apart, none of them negative. */
int fsdpck_values_input_box(struct fsdpck_fetch *f, struct fsdpck_fetch *input, size_t ordinal, const uint64_t *offset,
                            const uint64_t *size, void *dst, const int64_t *strides, struct fsdpck_error *err);
/* For a tensor that a view only passes on: reads or computes a box of the input's tensor. */
int fsdpck_values_pass(struct fsdpck_fetch *f, struct fsdpck_fetch *input, size_t ordinal,
                       const struct fsdpck_matrix_box *box, void *dst, uint64_t stride, struct fsdpck_error *err);
/* Like fsdpck_values_input, for elements [begin, end) in row-major order. */
int fsdpck_values_input_range(struct fsdpck_fetch *f, struct fsdpck_fetch *input, size_t ordinal, uint64_t begin,
                              uint64_t end, void *dst, struct fsdpck_error *err);

/* The state of a view that reads its one input through a piece of memory. begin: for values.begin; on failure *state is
 * freed by end, or NULL. */
struct fsdpck_value_piece {
    struct fsdpck_fetch fetch; /* of the input */
    uint8_t *piece;            /* (nbytes) */
};
int fsdpck_value_piece_begin(struct fsdpck_source *input, uint64_t nbytes, void **state, struct fsdpck_error *err);
/* For values.end. */
void fsdpck_value_piece_end(void *state);

#endif
