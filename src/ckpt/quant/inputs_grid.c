/* SPDX-License-Identifier: Apache-2.0 */
/* The scales and zero points of a box, as grids of float32: what each form stores, brought to a factor for each block.
 */
#include <math.h>
#include <string.h>

#include "quant/inputs.h"

static uint64_t ceil_div(uint64_t a, uint64_t b)
{
    return a / b + (a % b != 0);
}

/* The part of the grid that the box needs. */
struct grid {
    uint64_t row, nrows, col, ncols;
};

static struct grid grid_of(const struct fsdpck_quant_inputs *in)
{
    const struct fsdpck_quant_weight *w = in->w;
    const struct fsdpck_quant_box *b = &in->box;
    uint64_t end = b->col + b->ncols < w->cols ? b->col + b->ncols : w->cols; /* the box may go on into padding */
    struct grid g = { .row = b->row / w->group_rows, .col = b->col / w->group_cols };
    g.nrows = ceil_div(b->row + b->nrows, w->group_rows) - g.row;
    g.ncols = ceil_div(end, w->group_cols) - g.col;
    if (fsdpck_quant_has_whole_grid_rows(w)) {
        g.col = 0;
        g.ncols = w->grid_cols;
    }
    return g;
}

/* Reads rows [g->row, + nrows), columns [col, + ncols) of a part that is `width` wide and one of nmat, dense to raw. */
static int read_part(struct fsdpck_quant_inputs *in, struct fsdpck_fetch *f, enum fsdpck_quant_part p,
                     const struct grid *g, uint64_t height, uint64_t width, struct fsdpck_error *err)
{
    uint64_t item = fsdpck_dtype_info(quant_part(in->fetch.src, in->w, p)->dtype)->nbytes;
    uint64_t first = in->box.mat * height + g->row;
    const bool whole = g->ncols == width;
    int rc = fsdpck_quant_reserve(&in->raw, g->nrows * g->ncols * item, err);
    for (uint64_t i = 0; i < (whole ? 1 : g->nrows) && !rc; i++) {
        uint64_t begin = (first + i) * width + g->col, n = whole ? g->nrows * width : g->ncols;
        rc = fsdpck_values_input_range(f, &in->fetch, in->w->part[p], begin, begin + n,
                                       (uint8_t *)in->raw.data + i * g->ncols * item, err);
    }
    return rc;
}

/* ---- scales ---- */

static void widen(const struct fsdpck_quant_inputs *in, enum fsdpck_dtype dtype, const uint8_t *raw, uint64_t n,
                  float *out)
{
    if (fsdpck_dtype_info(dtype)->nbytes > 1)
        fsdpck_dtype_cast(dtype, raw, FSDPCK_FLOAT32, out, n);
    else
        for (uint64_t i = 0; i < n; i++)
            out[i] = in->byte_scale[raw[i]];
}

static void apply_rule(const struct fsdpck_quant_inputs *in, enum fsdpck_dtype dtype, uint64_t n, float *out)
{
    const enum fsdpck_quant_rule rule = in->w->rule;
    const float by = rule == FSDPCK_SCALE_TIMES ? in->global : 1.0f / 127.0f;
    widen(in, dtype, in->raw.data, n, out);
    for (uint64_t i = 0; i < n && rule == FSDPCK_SCALE_DIVIDED; i++)
        out[i] /= in->global;
    for (uint64_t i = 0; i < n && (rule == FSDPCK_SCALE_TIMES || rule == FSDPCK_SCALE_127TH); i++)
        out[i] *= by;
}

/* bitsandbytes quantizes the scales themselves, and rounds the product before it adds the offset. */
static int apply_nested(struct fsdpck_quant_inputs *in, struct fsdpck_fetch *f, const struct grid *g,
                        struct fsdpck_error *err)
{
    const struct fsdpck_quant_weight *w = in->w;
    uint64_t first = g->col / w->nested_block, last = ceil_div(g->col + g->ncols, w->nested_block);
    const uint8_t *raw = in->raw.data;
    float *out = in->scale.data;
    int rc = fsdpck_quant_reserve(&in->zero, (last - first) * sizeof(float), err);
    if (!rc)
        rc = fsdpck_values_input_range(f, &in->fetch, w->part[FSDPCK_QUANT_NESTED], first, last, in->zero.data, err);
    const float *nested = in->zero.data;
    for (uint64_t i = 0; i < g->ncols && !rc && !f->dry; i++) {
        volatile float product = in->nested_map[raw[i]] * nested[(g->col + i) / w->nested_block - first];
        out[i] = product + w->nested_offset;
    }
    return rc;
}

static int check_scales(const struct fsdpck_quant_inputs *in, const struct grid *g, struct fsdpck_error *err)
{
    const float *scale = in->scale.data;
    for (uint64_t i = 0; i < g->nrows * g->ncols; i++)
        if (!isfinite(scale[i]))
            return fsdpck_quant_refuse(in->fetch.src, in->w->part[FSDPCK_QUANT_SCALE], err,
                                       "gives no finite scale for block (%llu, %llu) of '%.120s'",
                                       (unsigned long long)(g->row + i / g->ncols),
                                       (unsigned long long)(g->col + i % g->ncols), in->w->name);
    return 0;
}

/* GPTQ: stored as [groups, rows]. */
static int read_turned(struct fsdpck_quant_inputs *in, struct fsdpck_fetch *f, const struct grid *g,
                       struct fsdpck_error *err)
{
    const struct fsdpck_tensor *t = quant_part(in->fetch.src, in->w, FSDPCK_QUANT_SCALE);
    const uint64_t offset[2] = { 0, g->row }, size[2] = { g->ncols, g->nrows };
    uint64_t item = fsdpck_dtype_info(t->dtype)->nbytes;
    float *out = in->scale.data;
    int rc = fsdpck_quant_reserve(&in->raw, g->nrows * g->ncols * item, err);
    if (!rc)
        rc = fsdpck_values_input(f, &in->fetch, in->w->part[FSDPCK_QUANT_SCALE], offset, size, in->raw.data, err);
    for (uint64_t k = 0; k < g->ncols && !rc && !f->dry; k++)
        for (uint64_t i = 0; i < g->nrows; i++)
            widen(in, t->dtype, (const uint8_t *)in->raw.data + (k * g->nrows + i) * item, 1, out + i * g->ncols + k);
    return rc;
}

static int load_scales(struct fsdpck_quant_inputs *in, struct fsdpck_fetch *f, const struct grid *g,
                       struct fsdpck_error *err)
{
    const struct fsdpck_quant_weight *w = in->w;
    int rc = fsdpck_quant_reserve(&in->scale, g->nrows * g->ncols * sizeof(float), err);
    if (!rc && w->packing == FSDPCK_PACK_DOWN)
        rc = read_turned(in, f, g, err);
    else if (!rc)
        rc = read_part(in, f, FSDPCK_QUANT_SCALE, g, w->grid_rows, w->grid_cols, err);
    if (!rc && w->rule == FSDPCK_SCALE_NESTED)
        rc = apply_nested(in, f, g, err);
    else if (!rc && !f->dry && w->packing != FSDPCK_PACK_DOWN)
        apply_rule(in, quant_part(in->fetch.src, w, FSDPCK_QUANT_SCALE)->dtype, g->nrows * g->ncols, in->scale.data);
    return rc || f->dry ? rc : check_scales(in, g, err);
}

/* ---- zero points ---- */

/* Where zero points are packed: (row, col) of the grid is code `code` of word (word_row, word_col). */
static uint32_t zero_at(const struct fsdpck_quant_weight *w, const uint8_t *words, uint64_t pitch, uint64_t word_row,
                        uint64_t word_col, uint64_t code)
{
    uint32_t word;
    memcpy(&word, words + (word_row * pitch + word_col) * 4, 4);
    return word >> w->bits * code & ((1u << w->bits) - 1);
}

static int load_zeros(struct fsdpck_quant_inputs *in, struct fsdpck_fetch *f, const struct grid *g,
                      struct fsdpck_error *err)
{
    const struct fsdpck_quant_weight *w = in->w;
    const uint64_t per = 32 / w->bits;
    struct grid words = *g;
    uint64_t width = w->grid_cols;
    if (w->packing == FSDPCK_PACK_NIBBLES) { /* compressed-tensors packs along the rows */
        words.row = g->row / per;
        words.nrows = ceil_div(g->row + g->nrows, per) - words.row;
    } else if (w->packing == FSDPCK_PACK_AWQ) {
        words.col = g->col / per;
        words.ncols = ceil_div(g->col + g->ncols, per) - words.col;
        width = w->grid_cols / per;
    } else {
        words = (struct grid){ 0, g->ncols, g->row / per, ceil_div(g->row + g->nrows, per) - g->row / per };
        width = ceil_div(w->grid_rows, per);
    }
    int rc = read_part(in, f, FSDPCK_QUANT_ZERO, &words, 0, width, err);
    if (!rc)
        rc = fsdpck_quant_reserve(&in->zero, g->nrows * g->ncols * sizeof(float), err);
    if (rc || f->dry)
        return rc;
    if (w->packing == FSDPCK_PACK_AWQ)
        fsdpck_quant_unshuffle_awq(in->raw.data, words.nrows * words.ncols);
    float *out = in->zero.data, centre = (float)(1u << (w->bits - 1));
    for (uint64_t i = 0; i < g->nrows; i++)
        for (uint64_t k = 0; k < g->ncols; k++) {
            uint64_t row = g->row + i, col = g->col + k;
            uint32_t z = w->packing == FSDPCK_PACK_NIBBLES
                             ? zero_at(w, in->raw.data, words.ncols, row / per - words.row, k, row % per)
                         : w->packing == FSDPCK_PACK_AWQ
                             ? zero_at(w, in->raw.data, words.ncols, i, col / per - words.col, col % per)
                             : zero_at(w, in->raw.data, words.ncols, k, row / per - words.col, row % per);
            out[i * g->ncols + k] = (float)(z + w->zero_less_one) - centre;
        }
    return 0;
}

int fsdpck_quant_load_grid(struct fsdpck_quant_inputs *in, struct fsdpck_fetch *f, struct fsdpck_error *err)
{
    const struct grid g = grid_of(in);
    in->grid_row = g.row;
    in->grid_col = g.col;
    in->grid_cols = g.ncols;
    int rc = load_scales(in, f, &g, err);
    return rc || in->w->part[FSDPCK_QUANT_ZERO] == SIZE_MAX ? rc : load_zeros(in, f, &g, err);
}
