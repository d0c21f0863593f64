/* SPDX-License-Identifier: Apache-2.0 */
/* A value view (engine/value_view.h) that gathers. */
#include "lora/fused_view.h"

#include <stdlib.h>
#include <string.h>

#include "engine/value_inputs.h"
#include "engine/view.h"

enum { PIECE_NBYTES = 1 << 20 }; /* of one expert's B */

struct view {
    struct fsdpck_view view;
    struct fsdpck_lora_fused *list; /* the tensors behind those of inner */
    size_t count;
};

static const struct fsdpck_lora_fused *fused_at(const struct view *v, size_t ordinal)
{
    const size_t n = v->view.inner.tensors.count;
    return ordinal < n ? NULL : &v->list[ordinal - n];
}

static bool has(const struct fsdpck_source *src, size_t ordinal)
{
    const struct view *v = src->impl;
    return fused_at(v, ordinal) || fsdpck_is_computed(&v->view.inner, ordinal);
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
    const struct fsdpck_lora_fused *x = fused_at(v, ordinal);
    int rc = x ? 0 : visit(ctx, &v->view.inner, ordinal, err);
    for (uint64_t i = 0; x && i < x->nexperts * x->nparts && !rc; i++)
        rc = visit(ctx, &v->view.inner, x->inner[i], err);
    return rc;
}

static int begin(struct fsdpck_source *src, void **state, struct fsdpck_error *err)
{
    return fsdpck_value_piece_begin(&((struct view *)src->impl)->view.inner, PIECE_NBYTES, state, err);
}

/* Rows of the inner tensors, one below the other. */
static int stack_rows(const struct fsdpck_lora_fused *x, struct fsdpck_fetch *f, struct fsdpck_value_piece *s,
                      uint64_t height, const struct fsdpck_matrix_box *box, uint8_t *dst, uint64_t stride,
                      struct fsdpck_error *err)
{
    int rc = 0;
    for (uint64_t at = 0, n; at < box->nrows && !rc; at += n) {
        const uint64_t row = box->row + at, left = height - row % height;
        n = left < box->nrows - at ? left : box->nrows - at;
        const struct fsdpck_matrix_box part = { row % height, n, box->col, box->ncols };
        rc = fsdpck_values_pass(f, &s->fetch, x->inner[row / height], &part, f->dry ? NULL : dst + at * stride, stride,
                                err);
    }
    return rc;
}

/* Where columns of B lie that are of one expert and part. */
struct spread {
    uint64_t expert, first; /* first: column k of the part is column (first + k) * nexperts + expert */
    uint64_t item;
};

static void scatter(const struct fsdpck_lora_fused *x, const struct spread *to, const uint8_t *rows, uint64_t nrows,
                    const struct fsdpck_matrix_box *box, uint8_t *dst, uint64_t stride)
{
    for (uint64_t k = 0; k < x->r; k++) {
        const uint64_t col = (to->first + k) * x->nexperts + to->expert;
        for (uint64_t i = 0; i < nrows && col >= box->col && col - box->col < box->ncols; i++)
            memcpy(dst + i * stride + (col - box->col) * to->item, rows + (i * x->r + k) * to->item, to->item);
    }
}

/* Rows of B that are of one part: of every expert, its columns; zeros elsewhere. */
static int spread_rows(const struct fsdpck_lora_fused *x, struct fsdpck_fetch *f, struct fsdpck_value_piece *s,
                       uint64_t item, const struct fsdpck_matrix_box *box, uint8_t *dst, uint64_t stride,
                       struct fsdpck_error *err)
{
    const uint64_t part = box->row / x->width;
    int rc = 0;
    for (uint64_t i = 0; i < box->nrows && !f->dry; i++)
        memset(dst + i * stride, 0, box->ncols * item);
    for (uint64_t e = 0; e < x->nexperts && !rc; e++) {
        const struct fsdpck_matrix_box rows = { box->row % x->width, box->nrows, 0, x->r };
        const struct spread to = { e, part * x->r, item };
        rc = fsdpck_values_pass(f, &s->fetch, x->inner[e * x->nparts + part], &rows, f->dry ? NULL : s->piece,
                                x->r * item, err);
        if (!rc && !f->dry)
            scatter(x, &to, s->piece, box->nrows, box, dst, stride);
    }
    return rc;
}

static int spread_columns(const struct fsdpck_lora_fused *x, struct fsdpck_fetch *f, struct fsdpck_value_piece *s,
                          uint64_t item, const struct fsdpck_matrix_box *box, uint8_t *dst, uint64_t stride,
                          struct fsdpck_error *err)
{
    const uint64_t most = PIECE_NBYTES / item / x->r;
    int rc = 0;
    for (uint64_t at = 0, n; at < box->nrows && !rc; at += n) {
        const uint64_t row = box->row + at, left = x->width - row % x->width;
        n = left < box->nrows - at ? left : box->nrows - at;
        n = n < most ? n : most;
        const struct fsdpck_matrix_box rows = { row, n, box->col, box->ncols };
        rc = spread_rows(x, f, s, item, &rows, f->dry ? NULL : dst + at * stride, stride, err);
    }
    return rc;
}

static int compute(struct fsdpck_fetch *f, void *state, size_t ordinal, const struct fsdpck_matrix_box *box, void *dst,
                   uint64_t stride, struct fsdpck_error *err)
{
    struct view *v = f->src->impl;
    struct fsdpck_value_piece *s = state;
    const struct fsdpck_lora_fused *x = fused_at(v, ordinal);
    if (!x)
        return fsdpck_values_pass(f, &s->fetch, ordinal, box, dst, stride, err);
    if (!x->is_b || x->stacked)
        return stack_rows(x, f, s, x->is_b ? x->width : x->r, box, dst, stride, err);
    return spread_columns(x, f, s, fsdpck_dtype_info(source_tensors(f->src)[ordinal].dtype)->nbytes, box, dst, stride,
                          err);
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

static int show_fused(struct fsdpck_source *src, const struct view *v, const struct fsdpck_lora_fused *x,
                      struct fsdpck_error *err)
{
    const uint64_t rank = x->nparts * x->r, out = x->nparts * x->width;
    const uint64_t stacked_a[] = { x->nexperts, rank, x->width }, stacked_b[] = { x->nexperts, out, x->r };
    const uint64_t flat_a[] = { x->nexperts * rank, x->width }, flat_b[] = { out, rank * x->nexperts };
    const uint64_t *shape = x->stacked ? (x->is_b ? stacked_b : stacked_a) : x->is_b ? flat_b : flat_a;
    const enum fsdpck_dtype dtype = source_tensors(&v->view.inner)[x->inner[0]].dtype;
    return fsdpck_source_add_tensor(src, src->path, x->name, NULL, 0, dtype, x->stacked ? 3 : 2, shape, err)
               ? 0
               : err->code;
}

int fsdpck_lora_fused_present(struct fsdpck_source *src, struct fsdpck_lora_fused *list, size_t n,
                              struct fsdpck_error *err)
{
    struct view *v = calloc(1, sizeof *v);
    if (!v) {
        free(list);
        return fsdpck_error_nomem(err, sizeof *v);
    }
    *v = (struct view){ .list = list, .count = n };
    fsdpck_view_install(&v->view, src, &ops);
    v->view.state_nbytes = fsdpck_fetch_nbytes(&v->view.inner) + PIECE_NBYTES;
    int rc = fsdpck_view_show_all(src, err);
    for (size_t i = 0; i < n && !rc; i++)
        rc = show_fused(src, v, &list[i], err);
    return rc;
}
