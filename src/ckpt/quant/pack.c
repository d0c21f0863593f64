/* SPDX-License-Identifier: Apache-2.0 */
/* Packs the codes of a row with the scales that they need. Scales that are bytes on disk stay bytes; others become
 * float32, the scales of bitsandbytes' double quantization too. */
#include "quant/pack.h"

#include <string.h>

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t padded(uint64_t nbytes)
{
    return (nbytes + 3) / 4 * 4;
}

static enum fsdpck_packed_scale scale_of(enum fsdpck_quant_rule rule)
{
    switch (rule) {
    case FSDPCK_SCALE_E8M0: return FSDPCK_PACKED_E8M0;
    case FSDPCK_SCALE_TIMES: return FSDPCK_PACKED_E4M3_TIMES;
    case FSDPCK_SCALE_DIVIDED: return FSDPCK_PACKED_E4M3_DIVIDED;
    default: return FSDPCK_PACKED_F32;
    }
}

/* One matrix; or a stack whose values are listed the other way round than its codes: gpt-oss's experts. */
static bool has_rows(const struct fsdpck_quant_weight *w)
{
    return w->transposed ? w->ndim == 3 : w->ndim == 2 && w->nmat == 1;
}

/* Rows of each matrix, and their columns. */
static uint64_t height(const struct fsdpck_quant_weight *w)
{
    return w->transposed ? w->rows : w->shape[0];
}

static uint64_t width(const struct fsdpck_quant_weight *w)
{
    return w->transposed ? w->cols : w->shape[1];
}

/* One rounding to bfloat16 must give the value that the library which wrote the weight gives it. */
static bool fits(const struct fsdpck_quant_weight *w)
{
    const bool nibbles = w->code == FSDPCK_DECODE_NIBBLE, in_order = w->packing <= FSDPCK_PACK_HIGH;
    return has_rows(w) && height(w) && width(w) && in_order && (nibbles || w->code == FSDPCK_DECODE_E4M3) &&
           w->part[FSDPCK_QUANT_ZERO] == SIZE_MAX && w->part[FSDPCK_QUANT_INDEX] == SIZE_MAX &&
           w->via != FSDPCK_FLOAT16 && !(nibbles && width(w) % 2) && (w->packing == FSDPCK_PACK_HIGH) == w->flat;
}

static uint64_t ceil_div(uint64_t a, uint64_t b)
{
    return a / b + (a % b != 0);
}

/* A row of a flat weight may begin with the last element of a group. */
static uint64_t nscales(const struct fsdpck_packed *p)
{
    return p->flat && p->cols % p->group ? 1 + ceil_div(p->cols - 1, p->group) : ceil_div(p->cols, p->group);
}

bool fsdpck_quant_packed(const struct fsdpck_source *src, const struct fsdpck_quant_weight *w,
                         struct fsdpck_packed *out)
{
    if (!fits(w))
        return false;
    *out = (struct fsdpck_packed){ .code = w->code == FSDPCK_DECODE_NIBBLE ? FSDPCK_PACKED_NIBBLES : FSDPCK_PACKED_E4M3,
                                   .scale = scale_of(w->rule),
                                   .rows = w->nmat * height(w),
                                   .cols = width(w),
                                   .group = w->group_cols,
                                   .flat = w->flat };
    if (out->scale != FSDPCK_PACKED_F32 &&
        fsdpck_dtype_info(quant_part(src, w, FSDPCK_QUANT_SCALE)->dtype)->nbytes != 1)
        out->scale = FSDPCK_PACKED_F32;
    if (out->code == FSDPCK_PACKED_NIBBLES)
        fsdpck_quant_code_values(w, out->values);
    const uint64_t item = out->scale == FSDPCK_PACKED_F32 ? sizeof(float) : 1;
    out->scales_at = padded(out->code == FSDPCK_PACKED_NIBBLES ? out->cols / 2 : out->cols);
    out->global_at = padded(out->scales_at + nscales(out) * item);
    out->row_nbytes = out->global_at + (out->scale >= FSDPCK_PACKED_E4M3_TIMES ? sizeof(float) : 0);
    return true;
}

/* ---- rows ---- */

static void put_codes(const struct fsdpck_quant_inputs *in, const struct fsdpck_packed *p, uint64_t row, uint8_t *out)
{
    const struct fsdpck_quant_box *b = &in->box;
    const uint64_t n = p->code == FSDPCK_PACKED_NIBBLES ? p->cols / 2 : p->cols;
    const uint8_t *codes = in->codes.data;
    if (!p->flat) {
        memcpy(out, codes + (row - b->row) * in->pitch, n);
        return;
    }
    codes += (row * p->cols - b->col) / 2;
    for (uint64_t i = 0; i < n; i++)
        out[i] = (uint8_t)(codes[i] << 4 | codes[i] >> 4);
}

static void put_scales(const struct fsdpck_quant_inputs *in, const struct fsdpck_packed *p, uint64_t row, uint8_t *out)
{
    const uint64_t item = p->scale == FSDPCK_PACKED_F32 ? sizeof(float) : 1;
    const uint8_t *from = p->scale == FSDPCK_PACKED_F32 ? in->scale.data : in->raw.data;
    uint64_t first = (row / in->w->group_rows - in->grid_row) * in->grid_cols, n = in->grid_cols;
    if (p->flat) {
        const uint64_t begin = row * p->cols / p->group, end = ((row + 1) * p->cols - 1) / p->group + 1;
        first = begin - in->grid_col;
        n = end - begin;
    }
    memcpy(out, from + first * item, n * item);
}

static void put_row(const struct fsdpck_quant_inputs *in, const struct fsdpck_packed *p, uint64_t row, uint8_t *out)
{
    memset(out, 0, p->row_nbytes);
    put_codes(in, p, row, out);
    put_scales(in, p, row, out + p->scales_at);
    if (p->global_at < p->row_nbytes)
        memcpy(out + p->global_at, &in->global, sizeof in->global);
}

/* Of matrix `mat`. */
static int load_rows(struct fsdpck_quant_inputs *in, struct fsdpck_fetch *f, const struct fsdpck_quant_weight *w,
                     const struct fsdpck_packed *p, uint64_t mat, uint64_t row, uint64_t nrows,
                     struct fsdpck_error *err)
{
    const struct fsdpck_quant_box some = { mat, row, nrows, 0, p->cols },
                                  flat = { 0, 0, 1, row * p->cols, nrows * p->cols };
    return fsdpck_quant_load(in, f, w, p->flat ? &flat : &some, err);
}

int fsdpck_quant_pack(struct fsdpck_quant_inputs *in, struct fsdpck_fetch *f, const struct fsdpck_quant_weight *w,
                      const struct fsdpck_packed *packed, const struct fsdpck_matrix_box *box, void *dst,
                      uint64_t stride, struct fsdpck_error *err)
{
    const uint64_t by_codes = FSDPCK_QUANT_PIECE / packed->cols, by_grid = FSDPCK_QUANT_GRID / (nscales(packed) + 1);
    const uint64_t most = least(by_codes, by_grid) ? least(by_codes, by_grid) : 1;
    const bool whole = box->ncols == packed->row_nbytes;
    int rc = whole ? 0 : fsdpck_quant_reserve(&in->index, packed->row_nbytes, err);
    for (uint64_t at = 0, n; at < box->nrows && !rc; at += n) {
        const uint64_t mat = (box->row + at) / height(w), first = (box->row + at) % height(w);
        n = least(least(most, box->nrows - at), height(w) - first);
        rc = load_rows(in, f, w, packed, mat, first, n, err);
        for (uint64_t i = 0; i < n && !rc && !f->dry; i++) {
            uint8_t *to = (uint8_t *)dst + (at + i) * stride, *row = whole ? to : in->index.data;
            put_row(in, packed, first + i, row);
            if (!whole)
                memcpy(to, row + box->col, box->ncols);
        }
    }
    return rc;
}
