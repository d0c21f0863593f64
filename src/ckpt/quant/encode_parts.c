/* SPDX-License-Identifier: Apache-2.0 */
#include "quant/encode_parts.h"

#include <float.h>

#include "quant/quantize.h"

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static int refuse_value(const struct fsdpck_quant_encoder *e, struct fsdpck_error *err)
{
    fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, e->fetch.src->path, "holds NaN or infinity; %s has no code for them",
                     e->form->what);
    fsdpck_error_tensor(err, source_tensors(e->fetch.src)[e->target->inner].name);
    return FSDPCK_ERR_UNSUPPORTED;
}

/* Reads a box of the weight, dense, to e->raw. */
static int read_tile(struct fsdpck_quant_encoder *e, struct fsdpck_fetch *f, const struct fsdpck_quant_piece *p,
                     struct fsdpck_error *err)
{
    const struct fsdpck_tensor *t = &source_tensors(e->fetch.src)[e->target->inner];
    const uint64_t offset[2] = { p->row, p->col }, size[2] = { p->nrows, p->ncols }, n = p->nrows * p->ncols;
    const uint64_t item = fsdpck_dtype_info(t->dtype)->nbytes;
    int rc = fsdpck_quant_reserve(&e->raw, n * item, err);
    if (rc)
        return rc;
    if (e->target->turned_rows) { /* a tile has all rows of a matrix */
        const uint64_t rows = e->target->turned_rows, first = (p->row / rows * e->target->cols + p->col) * rows;
        return fsdpck_values_input_range(f, &e->fetch, e->target->inner, first, first + n, e->raw.data, err);
    }
    if (t->ndim > 2) {
        const struct fsdpck_matrix_box box = { p->row, p->nrows, p->col, p->ncols };
        return fsdpck_values_pass(f, &e->fetch, e->target->inner, &box, e->raw.data, p->ncols * item, err);
    }
    return e->form->flat
               ? fsdpck_values_input_range(f, &e->fetch, e->target->inner, p->col, p->col + p->ncols, e->raw.data, err)
               : fsdpck_values_input(f, &e->fetch, e->target->inner, offset, size, e->raw.data, err);
}

static void widen_rows(struct fsdpck_quant_encoder *e, const struct fsdpck_quant_piece *tile,
                       const struct fsdpck_quant_piece *p, enum fsdpck_dtype dtype)
{
    const uint64_t item = fsdpck_dtype_info(dtype)->nbytes, n = p->nrows * p->ncols;
    const uint64_t run = p->ncols == tile->ncols ? n : p->ncols;
    const uint8_t *from =
        (const uint8_t *)e->raw.data + ((p->row - tile->row) * tile->ncols + p->col - tile->col) * item;
    for (uint64_t at = 0; at < n; at += run, from += tile->ncols * item)
        fsdpck_dtype_cast(dtype, from, FSDPCK_FLOAT32, (float *)e->in.data + at, run);
}

/* The same of a tile whose columns lie one after another. Merged values are float32. */
static void turn(struct fsdpck_quant_encoder *e, const struct fsdpck_quant_piece *tile,
                 const struct fsdpck_quant_piece *p)
{
    const float *from = (const float *)e->raw.data + (p->col - tile->col) * tile->nrows + p->row - tile->row;
    float *to = e->in.data;
    for (uint64_t k = 0; k < p->ncols; k++, from += tile->nrows)
        for (uint64_t i = 0; i < p->nrows; i++)
            to[i * p->ncols + k] = from[i];
}

/* Widens a part of the tile, dense, to e->in. */
static int widen(struct fsdpck_quant_encoder *e, const struct fsdpck_quant_piece *tile,
                 const struct fsdpck_quant_piece *p, float *amax, struct fsdpck_error *err)
{
    const uint64_t n = p->nrows * p->ncols;
    int rc = fsdpck_quant_reserve(&e->in, n * sizeof(float), err);
    if (rc)
        return rc;
    if (e->target->turned_rows)
        turn(e, tile, p);
    else
        widen_rows(e, tile, p, source_tensors(e->fetch.src)[e->target->inner].dtype);
    *amax = fsdpck_quantize_amax(e->in.data, n);
    return *amax <= FLT_MAX ? 0 : refuse_value(e, err);
}

/* Rows and columns of a part, which are those of whole blocks. */
static struct fsdpck_quant_piece part_of(const struct fsdpck_quant_encoder *e, const struct fsdpck_quant_piece *tile)
{
    const uint64_t gr = e->form->group_rows, gc = e->form->group_cols;
    const uint64_t cols = FSDPCK_QUANT_PART_NELEM / gr / gc * gc;
    struct fsdpck_quant_piece p = { .ncols = least(cols ? cols : gc, tile->ncols) };
    const uint64_t rows = FSDPCK_QUANT_PART_NELEM / p.ncols / gr * gr;
    p.nrows = least(rows ? rows : gr, tile->nrows);
    return p;
}

int fsdpck_quant_each_part(struct fsdpck_quant_encoder *e, struct fsdpck_fetch *f,
                           const struct fsdpck_quant_piece *tile, fsdpck_quant_part_fn *visit, void *ctx,
                           struct fsdpck_error *err)
{
    const struct fsdpck_quant_piece most = part_of(e, tile);
    const uint64_t row_end = tile->row + tile->nrows, col_end = tile->col + tile->ncols;
    float amax = 0;
    int rc = read_tile(e, f, tile, err);
    for (uint64_t row = tile->row; row < row_end && !rc && !f->dry; row += most.nrows)
        for (uint64_t col = tile->col; col < col_end && !rc; col += most.ncols) {
            const struct fsdpck_quant_piece part = { row, least(most.nrows, row_end - row), col,
                                                     least(most.ncols, col_end - col) };
            rc = widen(e, tile, &part, &amax, err);
            if (!rc)
                rc = visit(e, &part, amax, ctx, err);
        }
    return rc;
}
