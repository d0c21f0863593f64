/* SPDX-License-Identifier: Apache-2.0 */
/* Reads computed tensors (value_view.h) through a thread's workspace: ranges and boxes. */
#ifndef CKPT_VALUES_H
#define CKPT_VALUES_H

#include "engine/value_view.h"
#include "engine/workspace.h"

/* Computes elements [begin, end) in row-major order, dense. */
int fsdpck_values_range(struct fsdpck_fetch *f, size_t ordinal, uint64_t begin, uint64_t end, void *dst,
                        struct fsdpck_error *err);
/* Computes the box (offset, size) to dst, whose elements lie `strides` bytes apart. */
int fsdpck_values_box(struct fsdpck_fetch *f, size_t ordinal, const uint64_t *offset, const uint64_t *size, void *dst,
                      const int64_t *strides, struct fsdpck_error *err);
/* Computes a box of a tensor seen as a matrix, as compute() does. */
int fsdpck_values_matrix(struct fsdpck_fetch *f, size_t ordinal, struct fsdpck_matrix_box box, void *dst,
                         uint64_t stride, struct fsdpck_error *err);

#endif
