/* SPDX-License-Identifier: Apache-2.0 */
/* Reads of computed tensors: brings ranges and boxes to boxes of a matrix, which a view computes. Knows no formula. */
#include "engine/values.h"

#include <string.h>

#include "tensor/box.h"

enum { ROW_NBYTES = 4096 }; /* of a piece that is computed aside, where elements of a row are not dense */

int fsdpck_values_matrix(struct fsdpck_fetch *f, size_t ordinal, struct fsdpck_matrix_box box, void *dst,
                         uint64_t stride, struct fsdpck_error *err)
{
    const struct fsdpck_values *v = f->src->ops->values;
    int rc = f->values ? 0 : v->begin(f->src, &f->values, err);
    f->values_end = v->end;
    return rc ? rc : v->compute(f, f->values, ordinal, &box, dst, stride, err);
}

static uint64_t columns_of(const struct fsdpck_tensor *t)
{
    return t->ndim ? t->shape[t->ndim - 1] : 1;
}

int fsdpck_values_range(struct fsdpck_fetch *f, size_t ordinal, uint64_t begin, uint64_t end, void *dst,
                        struct fsdpck_error *err)
{
    const struct fsdpck_tensor *t = &source_tensors(f->src)[ordinal];
    uint64_t item = fsdpck_dtype_info(t->dtype)->nbytes, cols = columns_of(t);
    int rc = 0;
    while (!rc && begin < end) { /* the rest of a row, whole rows, the start of a row */
        struct fsdpck_matrix_box box = { begin / cols, 1, begin % cols, cols };
        if (box.col == 0 && end - begin >= cols)
            box.nrows = (end - begin) / cols;
        else if (box.col + (end - begin) < cols)
            box.ncols = end - begin;
        else
            box.ncols = cols - box.col;
        rc = fsdpck_values_matrix(f, ordinal, box, dst, cols * item, err);
        dst = (uint8_t *)dst + box.nrows * box.ncols * item;
        begin += box.nrows * box.ncols;
    }
    return rc;
}

/* ---- boxes ---- */

/* Computes rows whose elements are not dense in dst, a piece of a row at a time. */
static int compute_scattered(struct fsdpck_fetch *f, size_t ordinal, struct fsdpck_matrix_box box, uint8_t *dst,
                             int64_t row_stride, int64_t stride, uint64_t item, struct fsdpck_error *err)
{
    uint8_t piece[ROW_NBYTES];
    uint64_t most = sizeof piece / item;
    int rc = 0;
    for (uint64_t i = 0; i < box.nrows; i++)
        for (uint64_t at = 0, n; at < box.ncols && !rc; at += n) {
            n = box.ncols - at < most ? box.ncols - at : most;
            rc = fsdpck_values_matrix(f, ordinal, (struct fsdpck_matrix_box){ box.row + i, 1, box.col + at, n }, piece,
                                      0, err);
            for (uint64_t k = 0; k < n && !rc && !f->dry; k++)
                memcpy(dst + (int64_t)i * row_stride + (int64_t)(at + k) * stride, piece + k * item, item);
        }
    return rc;
}

int fsdpck_values_box(struct fsdpck_fetch *f, size_t ordinal, const uint64_t *offset, const uint64_t *size, void *dst,
                      const int64_t *strides, struct fsdpck_error *err)
{
    const struct fsdpck_tensor *t = &source_tensors(f->src)[ordinal];
    uint32_t n = t->ndim;
    uint64_t item = fsdpck_dtype_info(t->dtype)->nbytes, at[FSDPCK_MAX_DIMS] = { 0 };
    if (n == 0)
        return fsdpck_values_matrix(f, ordinal, (struct fsdpck_matrix_box){ 0, 1, 0, 1 }, dst, item, err);
    const bool two = n >= 2, dense = strides[n - 1] == (int64_t)item || size[n - 1] == 1;
    for (;;) { /* one box of the last two dimensions after another */
        uint8_t *to = dst;
        uint64_t row = 0;
        for (uint32_t d = 0; d + 1 < n; d++) {
            row = row * t->shape[d] + offset[d] + at[d];
            to = to ? to + (int64_t)at[d] * strides[d] : NULL; /* NULL: a plan */
        }
        struct fsdpck_matrix_box box = { row, two ? size[n - 2] : 1, offset[n - 1], size[n - 1] };
        int64_t stride = two ? strides[n - 2] : 0;
        int rc = dense && stride >= 0 ? fsdpck_values_matrix(f, ordinal, box, to, (uint64_t)stride, err)
                                      : compute_scattered(f, ordinal, box, to, stride, strides[n - 1], item, err);
        uint32_t d = two ? n - 2 : 0;
        while (d-- > 0 && ++at[d] == size[d])
            at[d] = 0;
        if (rc || d == UINT32_MAX)
            return rc;
    }
}
