/* SPDX-License-Identifier: Apache-2.0 */
/* A value view (engine/value_view.h) that gathers and scales. */
#include "lora/blocks_view.h"

#include <stdlib.h>
#include <string.h>

#include "engine/value_inputs.h"
#include "engine/view.h"

/* PIECE: elements that are scaled at once. ROWS_NBYTES: of a block whose columns are spread. */
enum { PIECE = 4096, SCALE_NBYTES = PIECE * sizeof(double), ROWS_NBYTES = 1 << 20 };

struct view {
    struct fsdpck_view view;
    struct fsdpck_lora_blocks *list; /* the tensors behind those of inner */
};

static const struct fsdpck_lora_blocks *blocks_at(const struct view *v, size_t ordinal)
{
    const size_t n = v->view.inner.tensors.count;
    return ordinal < n ? NULL : &v->list[ordinal - n];
}

static bool has(const struct fsdpck_source *src, size_t ordinal)
{
    const struct view *v = src->impl;
    return blocks_at(v, ordinal) || fsdpck_is_computed(&v->view.inner, ordinal);
}

static int extents(struct fsdpck_source *src, size_t ordinal, const uint64_t *offset, const uint64_t *size,
                   fsdpck_extent_fn visit, void *ctx, struct fsdpck_error *err)
{
    struct view *v = src->impl;
    if (has(src, ordinal))
        return fsdpck_view_no_extents(src, ordinal, "is made of several tensors", err);
    return v->view.inner.ops->extents(&v->view.inner, ordinal, offset, size, visit, ctx, err);
}

static int inputs(struct fsdpck_source *src, size_t ordinal, fsdpck_input_fn visit, void *ctx, struct fsdpck_error *err)
{
    struct view *v = src->impl;
    const struct fsdpck_lora_blocks *x = blocks_at(v, ordinal);
    int rc = x ? 0 : visit(ctx, &v->view.inner, ordinal, err);
    for (size_t i = 0; x && i < x->n && !rc; i++)
        rc = visit(ctx, &v->view.inner, x->list[i].inner, err);
    return rc;
}

static int begin(struct fsdpck_source *src, void **state, struct fsdpck_error *err)
{
    return fsdpck_value_piece_begin(&((struct view *)src->impl)->view.inner, SCALE_NBYTES + ROWS_NBYTES, state, err);
}

/* Multiplies a row, in pieces. room: (PIECE) */
static void scale_row(enum fsdpck_dtype dtype, uint8_t *row, uint64_t n, double scale, double *room)
{
    const uint64_t item = fsdpck_dtype_info(dtype)->nbytes;
    for (uint64_t at = 0; at < n; at += PIECE) {
        const uint64_t count = n - at < PIECE ? n - at : PIECE;
        fsdpck_dtype_cast(dtype, row + at * item, FSDPCK_FLOAT64, room, count);
        for (uint64_t i = 0; i < count; i++)
            room[i] *= scale;
        fsdpck_dtype_cast(FSDPCK_FLOAT64, room, dtype, row + at * item, count);
    }
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Reads columns [col, col + ncols) of rows of the block, counted in the block, and scales them. */
static int read_rows(struct fsdpck_fetch *f, struct fsdpck_value_piece *s, const struct fsdpck_lora_block *b,
                     const struct fsdpck_matrix_box *part, uint8_t *to, uint64_t stride, struct fsdpck_error *err)
{
    const enum fsdpck_dtype dtype = source_tensors(&((struct view *)f->src->impl)->view.inner)[b->inner].dtype;
    const struct fsdpck_matrix_box box = { b->first + part->row, part->nrows, part->col, part->ncols };
    int rc = fsdpck_values_pass(f, &s->fetch, b->inner, &box, f->dry ? NULL : to, stride, err);
    for (uint64_t i = 0; i < part->nrows && !rc && !f->dry && b->scale != 1; i++)
        scale_row(dtype, to + i * stride, part->ncols, b->scale, (double *)s->piece);
    return rc;
}

/* Where a block's columns go: (nrows) rows of dst, which is of the box. */
static void spread(const struct fsdpck_lora_block *b, const struct fsdpck_matrix_box *box, const uint8_t *rows,
                   uint64_t nrows, uint64_t item, uint8_t *dst, uint64_t stride)
{
    for (uint64_t k = 0; k < b->ncols; k++) {
        const uint64_t col = b->col + k * b->step;
        for (uint64_t i = 0; i < nrows && col >= box->col && col - box->col < box->ncols; i++)
            memcpy(dst + i * stride + (col - box->col) * item, rows + (i * b->ncols + k) * item, item);
    }
}

/* Rows of a block whose columns have others between them: whole ones are read, in pieces. */
static int put_spread(struct fsdpck_fetch *f, struct fsdpck_value_piece *s, const struct fsdpck_lora_block *b,
                      const struct fsdpck_matrix_box *box, uint64_t row, uint64_t nrows, uint8_t *dst, uint64_t stride,
                      struct fsdpck_error *err)
{
    const uint64_t item = fsdpck_dtype_info(source_tensors(&((struct view *)f->src->impl)->view.inner)[b->inner].dtype)
                              ->nbytes,
                   most = ROWS_NBYTES / item / b->ncols;
    uint8_t *rows = s->piece + SCALE_NBYTES;
    int rc = 0;
    for (uint64_t at = 0, n; at < nrows && !rc; at += n) {
        n = least(nrows - at, most);
        const struct fsdpck_matrix_box part = { row + at - b->row, n, 0, b->ncols };
        rc = read_rows(f, s, b, &part, rows, b->ncols * item, err);
        if (!rc && !f->dry)
            spread(b, box, rows, n, item, dst + (row + at - box->row) * stride, stride);
    }
    return rc;
}

/* Puts what of the block lies in the box into dst, which is of the box. */
static int put(struct fsdpck_fetch *f, struct fsdpck_value_piece *s, const struct fsdpck_lora_block *b,
               const struct fsdpck_matrix_box *box, uint8_t *dst, uint64_t stride, struct fsdpck_error *err)
{
    const uint64_t step = b->step ? b->step : 1;
    const uint64_t row = b->row > box->row ? b->row : box->row, col = b->col > box->col ? b->col : box->col;
    const uint64_t row_end = least(b->row + b->nrows, box->row + box->nrows),
                   col_end = least(b->col + (b->ncols - 1) * step + 1, box->col + box->ncols);
    if (row >= row_end || col >= col_end)
        return 0;
    if (step > 1)
        return put_spread(f, s, b, box, row, row_end - row, dst, stride, err);
    const uint64_t item = fsdpck_dtype_info(source_tensors(f->src)[b->inner].dtype)->nbytes;
    const struct fsdpck_matrix_box part = { row - b->row, row_end - row, col - b->col, col_end - col };
    uint8_t *to = f->dry ? NULL : dst + (row - box->row) * stride + (col - box->col) * item;
    return read_rows(f, s, b, &part, to, stride, err);
}

static int compute(struct fsdpck_fetch *f, void *state, size_t ordinal, const struct fsdpck_matrix_box *box, void *dst,
                   uint64_t stride, struct fsdpck_error *err)
{
    struct view *v = f->src->impl;
    struct fsdpck_value_piece *s = state;
    const struct fsdpck_lora_blocks *x = blocks_at(v, ordinal);
    if (!x)
        return fsdpck_values_pass(f, &s->fetch, ordinal, box, dst, stride, err);
    const uint64_t item = fsdpck_dtype_info(source_tensors(f->src)[ordinal].dtype)->nbytes;
    int rc = 0;
    for (uint64_t i = 0; i < box->nrows && !f->dry; i++)
        memset((uint8_t *)dst + i * stride, 0, box->ncols * item);
    for (size_t i = 0; i < x->n && !rc; i++)
        rc = put(f, s, &x->list[i], box, dst, stride, err);
    return rc;
}

static void close_view(struct fsdpck_source *src)
{
    free(((struct view *)src->impl)->list);
    fsdpck_view_close(src);
}

static const struct fsdpck_values values = { .has = has,
                                             .inputs = inputs,
                                             .begin = begin,
                                             .end = fsdpck_value_piece_end,
                                             .nbytes = fsdpck_view_state_nbytes,
                                             .compute = compute,
                                             .finish = fsdpck_view_finish };

static const struct fsdpck_source_ops ops = { .extents = extents, .close = close_view, .values = &values };

int fsdpck_lora_blocks_present(struct fsdpck_source *src, struct fsdpck_lora_blocks *list, size_t n,
                               struct fsdpck_error *err)
{
    struct view *v = calloc(1, sizeof *v);
    if (!v) {
        free(list);
        return fsdpck_error_nomem(err, sizeof *v);
    }
    *v = (struct view){ .list = list };
    fsdpck_view_install(&v->view, src, &ops);
    v->view.state_nbytes = fsdpck_fetch_nbytes(&v->view.inner) + SCALE_NBYTES + ROWS_NBYTES;
    int rc = fsdpck_view_show_all(src, err);
    for (size_t i = 0; i < n && !rc; i++) {
        const struct fsdpck_lora_blocks *x = &list[i];
        const uint64_t nlayer = x->nlayer ? x->nlayer : 1, shape[] = { nlayer, x->nrows / nlayer, x->ncols };
        const enum fsdpck_dtype dtype = source_tensors(&v->view.inner)[x->list[0].inner].dtype;
        if (!fsdpck_source_add_tensor(src, src->path, x->name, NULL, 0, dtype, x->nlayer ? 3 : 2,
                                      x->nlayer ? shape : shape + 1, err))
            rc = err->code;
    }
    return rc;
}
