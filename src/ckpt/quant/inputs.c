/* SPDX-License-Identifier: Apache-2.0 */
/* The codes of a box, and dequantizing rows of it. inputs_grid.c loads the scales. */
#include "quant/inputs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"

int fsdpck_quant_inputs_init(struct fsdpck_quant_inputs *in, struct fsdpck_source *src, enum fsdpck_dtype to,
                             struct fsdpck_error *err)
{
    memset(in, 0, sizeof *in);
    in->decode.to = to;
    return fsdpck_fetch_init(&in->fetch, src, err);
}

void fsdpck_quant_inputs_free(struct fsdpck_quant_inputs *in)
{
    fsdpck_fetch_free(&in->fetch);
    free(in->codes.data);
    free(in->scale.data);
    free(in->zero.data);
    free(in->index.data);
    free(in->raw.data);
}

int fsdpck_quant_reserve(struct fsdpck_quant_buffer *b, uint64_t nbytes, struct fsdpck_error *err)
{
    if (nbytes <= b->nbytes)
        return 0;
    free(b->data);
    b->nbytes = 0;
    b->data = fsdpck_buffer_new(nbytes);
    if (!b->data)
        return fsdpck_error_nomem(err, nbytes);
    b->nbytes = nbytes;
    return 0;
}

static bool turns(const struct fsdpck_quant_weight *w)
{
    return w->transposed || w->packing == FSDPCK_PACK_DOWN;
}

bool fsdpck_quant_is_whole(const struct fsdpck_quant_weight *w)
{
    return turns(w) && w->row_nbytes <= FSDPCK_QUANT_WHOLE_NBYTES / w->rows;
}

bool fsdpck_quant_has_whole_grid_rows(const struct fsdpck_quant_weight *w)
{
    return w->part[FSDPCK_QUANT_INDEX] != SIZE_MAX || w->packing == FSDPCK_PACK_DOWN;
}

uint64_t fsdpck_quant_inputs_nbytes(const struct fsdpck_quant_weight *w)
{
    uint64_t codes = FSDPCK_QUANT_PIECE, grid = FSDPCK_QUANT_GRID;
    if (fsdpck_quant_has_whole_grid_rows(w) && w->grid_cols > grid)
        grid = w->grid_cols;
    uint64_t index = w->part[FSDPCK_QUANT_INDEX] == SIZE_MAX ? 0 : w->cols * sizeof(int32_t);
    if (fsdpck_quant_is_whole(w)) {
        codes = w->rows * w->row_nbytes * (w->packing == FSDPCK_PACK_DOWN ? 2 : 1);
        grid = w->grid_rows * w->grid_cols;
    }
    return codes + grid * 3 * sizeof(float) + index + 4 * FSDPCK_PAGE_NBYTES;
}

/* ---- codes ---- */

static unsigned bits_of(const struct fsdpck_quant_weight *w)
{
    return w->code == FSDPCK_DECODE_NIBBLE ? 4 : 8;
}

/* Number of codes that are stored together: a box begins and ends at multiples of it. */
static uint64_t unit_of(const struct fsdpck_quant_weight *w, const struct fsdpck_tensor *t)
{
    if (t->ndim == 4)
        return w->group_cols;
    return fsdpck_dtype_info(t->dtype)->nbytes * 8 / bits_of(w);
}

static void widen_box(const struct fsdpck_quant_weight *w, uint64_t unit, struct fsdpck_quant_box *box)
{
    uint64_t end = box->col + box->ncols, all = w->cols + (unit - w->cols % unit) % unit;
    box->col -= box->col % unit;
    end += (unit - end % unit) % unit;
    box->ncols = (end < all ? end : all) - box->col;
    if (fsdpck_quant_is_whole(w))
        *box = (struct fsdpck_quant_box){ box->mat, 0, w->rows, 0, all };
}

void fsdpck_quant_unshuffle_awq(uint8_t *words, uint64_t nwords)
{
    static const unsigned column[8] = { 0, 2, 4, 6, 1, 3, 5, 7 }; /* of nibble i */
    for (uint64_t k = 0; k < nwords; k++) {
        uint32_t word, out = 0;
        memcpy(&word, words + 4 * k, 4);
        for (unsigned i = 0; i < 8; i++)
            out |= (word >> 4 * i & 15) << 4 * column[i];
        memcpy(words + 4 * k, &out, 4);
    }
}

/* Words [ncol][nrow] become [nrow][ncol]. */
static void turn_words(const uint8_t *in, uint8_t *out, uint64_t nrow, uint64_t ncol)
{
    for (uint64_t i = 0; i < nrow; i++)
        for (uint64_t k = 0; k < ncol; k++)
            memcpy(out + (i * ncol + k) * 4, in + (k * nrow + i) * 4, 4);
}

/* Integers count from 2^(bits - 1); as two's complement they count from 0. */
static void centre_bytes(uint8_t *codes, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        codes[i] ^= 0x80;
}

static int read_flat(struct fsdpck_quant_inputs *in, struct fsdpck_fetch *f, struct fsdpck_error *err)
{
    const struct fsdpck_tensor *t = quant_part(in->fetch.src, in->w, FSDPCK_QUANT_CODES);
    uint64_t unit = unit_of(in->w, t), begin = in->box.col / unit, n = in->box.ncols / unit;
    int rc = fsdpck_quant_reserve(&in->codes, n * fsdpck_dtype_info(t->dtype)->nbytes, err);
    return rc ? rc
              : fsdpck_values_input_range(f, &in->fetch, in->w->part[FSDPCK_QUANT_CODES], begin, begin + n,
                                          in->codes.data, err);
}

static int read_matrix(struct fsdpck_quant_inputs *in, struct fsdpck_fetch *f, struct fsdpck_error *err)
{
    const struct fsdpck_quant_weight *w = in->w;
    const struct fsdpck_tensor *t = quant_part(in->fetch.src, w, FSDPCK_QUANT_CODES);
    const struct fsdpck_quant_box *b = &in->box;
    uint64_t unit = unit_of(w, t), item = fsdpck_dtype_info(t->dtype)->nbytes;
    uint64_t offset[4], size[4], first = b->col / unit, n = b->ncols / unit;
    uint32_t d = 0;
    if (t->ndim > 2) {
        offset[d] = b->mat;
        size[d++] = 1;
    }
    const bool down = w->packing == FSDPCK_PACK_DOWN;
    offset[d] = down ? first : b->row;
    size[d++] = down ? n : b->nrows;
    offset[d] = down ? b->row : first;
    size[d++] = down ? b->nrows : n;
    if (t->ndim == 4) {
        offset[d] = 0;
        size[d++] = t->shape[3];
        item *= t->shape[3];
    }
    in->pitch = n * item;
    struct fsdpck_quant_buffer *to = down ? &in->raw : &in->codes;
    int rc = fsdpck_quant_reserve(&in->codes, b->nrows * in->pitch, err);
    if (!rc)
        rc = fsdpck_quant_reserve(to, b->nrows * in->pitch, err);
    if (!rc)
        rc = fsdpck_values_input(f, &in->fetch, w->part[FSDPCK_QUANT_CODES], offset, size, to->data, err);
    if (rc || f->dry)
        return rc;
    if (down)
        turn_words(in->raw.data, in->codes.data, b->nrows, n);
    if (w->packing == FSDPCK_PACK_AWQ)
        fsdpck_quant_unshuffle_awq(in->codes.data, b->nrows * n);
    if (w->bits == 8)
        centre_bytes(in->codes.data, b->nrows * in->pitch);
    return 0;
}

/* ---- what a weight has once ---- */

static int read_floats(struct fsdpck_quant_inputs *in, struct fsdpck_fetch *f, enum fsdpck_quant_part p, uint64_t n,
                       float *out, struct fsdpck_error *err)
{
    return in->w->part[p] == SIZE_MAX ? 0 : fsdpck_values_input_range(f, &in->fetch, in->w->part[p], 0, n, out, err);
}

static int check_map(const struct fsdpck_quant_inputs *in, const float map[16], struct fsdpck_error *err)
{
    for (int i = 0; i < 16; i++)
        if (!isfinite(map[i]))
            return fsdpck_quant_refuse(in->fetch.src, in->w->part[FSDPCK_QUANT_MAP], err,
                                       "gives no finite value for code %d of '%.120s'", i, in->w->name);
    return 0;
}

void fsdpck_quant_code_values(const struct fsdpck_quant_weight *w, float out[16])
{
    for (int i = 0; i < 16; i++)
        out[i] = w->bits == 4 ? (float)(i - 8) : fsdpck_e2m1_value((uint8_t)i);
    if (w->bits != 4 && w->plus_zero)
        out[8] = 0.0f;
}

static void set_table(struct fsdpck_quant_inputs *in, const float map[16])
{
    float values[16];
    fsdpck_quant_code_values(in->w, values);
    if (in->w->part[FSDPCK_QUANT_MAP] != SIZE_MAX)
        fsdpck_decode_set_table(&in->decode, map, true);
    else
        fsdpck_decode_set_table(&in->decode, values, false);
}

/* Values of scales that are bytes, without the rule that comes after. */
static void set_byte_scales(struct fsdpck_quant_inputs *in)
{
    bool e8m0 = in->w->rule == FSDPCK_SCALE_E8M0;
    for (unsigned b = 0; b < 256; b++)
        in->byte_scale[b] = e8m0 ? fsdpck_e8m0_value((uint8_t)b) : fsdpck_e4m3_value((uint8_t)b);
}

static int load_index(struct fsdpck_quant_inputs *in, struct fsdpck_fetch *f, struct fsdpck_error *err)
{
    const struct fsdpck_quant_weight *w = in->w;
    size_t ordinal = w->part[FSDPCK_QUANT_INDEX];
    if (ordinal == SIZE_MAX)
        return 0;
    int rc = fsdpck_quant_reserve(&in->index, w->cols * sizeof(int32_t), err);
    if (!rc)
        rc = fsdpck_values_input_range(f, &in->fetch, ordinal, 0, w->cols, in->index.data, err);
    const int32_t *index = in->index.data;
    for (uint64_t i = 0; i < w->cols && !rc && !f->dry; i++)
        if (index[i] < 0 || (uint64_t)index[i] >= w->grid_cols)
            rc = fsdpck_quant_refuse(in->fetch.src, ordinal, err, "names group %d for input %llu; there are %llu",
                                     (int)index[i], (unsigned long long)i, (unsigned long long)w->grid_cols);
    return rc;
}

static int load_weight(struct fsdpck_quant_inputs *in, struct fsdpck_fetch *f, const struct fsdpck_quant_weight *w,
                       struct fsdpck_error *err)
{
    float map[16] = { 0 };
    in->w = w;
    in->decode.code = w->code;
    in->decode.via = w->via;
    in->global = 1.0f;
    int rc = read_floats(in, f, FSDPCK_QUANT_GLOBAL, 1, &in->global, err);
    if (!rc)
        rc = read_floats(in, f, FSDPCK_QUANT_MAP, 16, map, err);
    if (!rc && !f->dry)
        rc = check_map(in, map, err);
    if (!rc)
        rc = read_floats(in, f, FSDPCK_QUANT_NESTED_MAP, 256, in->nested_map, err);
    if (!rc)
        rc = load_index(in, f, err);
    if (!rc && w->code == FSDPCK_DECODE_NIBBLE)
        set_table(in, map);
    set_byte_scales(in);
    return rc;
}

/* ---- boxes ---- */

static bool is_loaded(const struct fsdpck_quant_inputs *in, const struct fsdpck_quant_weight *w,
                      const struct fsdpck_quant_box *b)
{
    const struct fsdpck_quant_box *l = &in->box;
    return in->w == w && l->mat == b->mat && b->row >= l->row && b->row + b->nrows <= l->row + l->nrows &&
           b->col >= l->col && b->col + b->ncols <= l->col + l->ncols;
}

int fsdpck_quant_load(struct fsdpck_quant_inputs *in, struct fsdpck_fetch *f, const struct fsdpck_quant_weight *w,
                      const struct fsdpck_quant_box *box, struct fsdpck_error *err)
{
    if (is_loaded(in, w, box))
        return 0;
    in->box = (struct fsdpck_quant_box){ 0 };
    int rc = in->w == w ? 0 : load_weight(in, f, w, err);
    struct fsdpck_quant_box wide = *box;
    widen_box(w, unit_of(w, quant_part(in->fetch.src, w, FSDPCK_QUANT_CODES)), &wide);
    in->box = wide;
    if (!rc)
        rc = w->flat ? read_flat(in, f, err) : read_matrix(in, f, err);
    if (!rc)
        rc = fsdpck_quant_load_grid(in, f, err);
    if (rc)
        in->w = NULL;
    return rc;
}

void fsdpck_quant_row(const struct fsdpck_quant_inputs *in, uint64_t row, uint64_t col, uint64_t ncols, void *out)
{
    const struct fsdpck_quant_weight *w = in->w;
    const uint64_t at = (row / w->group_rows - in->grid_row) * in->grid_cols;
    const struct fsdpck_groups groups = {
        .scale = (const float *)in->scale.data + at,
        .zero = w->part[FSDPCK_QUANT_ZERO] == SIZE_MAX ? NULL : (const float *)in->zero.data + at,
        .index = w->part[FSDPCK_QUANT_INDEX] == SIZE_MAX ? NULL : in->index.data,
        .nelem = w->group_cols,
        .phase = in->box.col - in->grid_col * w->group_cols,
    };
    fsdpck_decode_run(&in->decode, (const uint8_t *)in->codes.data + (row - in->box.row) * in->pitch, col - in->box.col,
                      ncols, &groups, out);
}

void fsdpck_quant_prefetch(const struct fsdpck_quant_inputs *in, uint64_t row, uint64_t col, uint64_t ncols)
{
    const uint64_t per = 8 / bits_of(in->w);
    const uint8_t *codes = (const uint8_t *)in->codes.data + (row - in->box.row) * in->pitch;
    for (uint64_t at = (col - in->box.col) / per; at < (col - in->box.col + ncols) / per; at += 64)
        __builtin_prefetch(codes + at);
}
