/* SPDX-License-Identifier: Apache-2.0 */
#include "quant/encode_pieces.h"

#include <string.h>

#include "quant/encode_parts.h"
#include "quant/quantize.h"

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t ceil_div(uint64_t a, uint64_t b)
{
    return a / b + (a % b != 0);
}

uint64_t fsdpck_quant_scale_nbytes(const struct fsdpck_quant_target_form *form)
{
    return fsdpck_dtype_info(fsdpck_quant_scale_dtype(form))->nbytes;
}

/* ---- the largest value ---- */

static int take_most(struct fsdpck_quant_encoder *e, const struct fsdpck_quant_piece *part, float amax, void *most,
                     struct fsdpck_error *err)
{
    (void)e, (void)part, (void)err;
    *(float *)most = amax > *(float *)most ? amax : *(float *)most;
    return 0;
}

/* Reads the whole weight for its largest value. The first thread that needs it does; others wait. */
static int find_global(struct fsdpck_quant_encoder *e, struct fsdpck_fetch *f, struct fsdpck_error *err)
{
    struct fsdpck_quant_target *t = e->target;
    const uint64_t ncols = least(t->cols, FSDPCK_QUANT_TILE_NELEM), nrows = FSDPCK_QUANT_TILE_NELEM / ncols;
    float most = 0;
    int rc = 0;
    for (uint64_t row = 0; row < t->rows && !rc; row += nrows)
        for (uint64_t col = 0; col < t->cols && !rc; col += ncols) {
            const struct fsdpck_quant_piece p = { row, least(nrows, t->rows - row), col, least(ncols, t->cols - col) };
            rc = fsdpck_quant_each_part(e, f, &p, take_most, &most, err);
        }
    if (!rc && !f->dry) {
        t->global = e->form->to == FSDPCK_TO_NVFP4 ? fsdpck_nvfp4_global(most, e->form->nv)
                                                   : fsdpck_fp8_scale(most, fsdpck_quant_scale_dtype(e->form));
        t->has_global = true;
    }
    return rc;
}

int fsdpck_quant_need_global(struct fsdpck_quant_encoder *e, struct fsdpck_fetch *f, struct fsdpck_error *err)
{
    const size_t number = (size_t)(e->target - e->targets->list);
    int rc = 0;
    if (!fsdpck_quant_needs_global(e->form) || (f->dry && e->counted[number]))
        return 0;
    e->counted[number] = f->dry;
    pthread_mutex_lock(&e->target->lock);
    if (f->dry || !e->target->has_global)
        rc = find_global(e, f, err);
    pthread_mutex_unlock(&e->target->lock);
    return rc;
}

/* ---- quantizing ---- */

/* Scales of FP8 are computed as float32, and stored in their own dtype. */
static void narrow_scales(const struct fsdpck_quant_encoder *e, uint64_t n, void *out)
{
    const enum fsdpck_dtype dtype = fsdpck_quant_scale_dtype(e->form);
    const float *wide = e->wide.data;
    if (fsdpck_dtype_info(dtype)->nbytes > 1)
        fsdpck_dtype_cast(FSDPCK_FLOAT32, wide, dtype, out, n);
    for (uint64_t i = 0; i < n && fsdpck_dtype_info(dtype)->nbytes == 1; i++)
        ((uint8_t *)out)[i] = fsdpck_e8m0_code(wide[i]);
}

static int quantize_fp8(struct fsdpck_quant_encoder *e, const struct fsdpck_quant_piece *p, uint8_t *codes,
                        void *scales, struct fsdpck_error *err)
{
    const struct fsdpck_quant_target_form *form = e->form;
    const struct fsdpck_fp8_blocks blocks = { form->group_rows, form->group_cols, form->ue8m0 };
    const uint64_t n = ceil_div(p->nrows, form->group_rows) * ceil_div(p->ncols, form->group_cols);
    int rc = fsdpck_quant_reserve(&e->wide, n * sizeof(float), err);
    if (rc)
        return rc;
    if (form->to == FSDPCK_TO_FP8_BLOCK)
        fsdpck_quantize_fp8(e->in.data, p->nrows, p->ncols, &blocks, codes, e->wide.data);
    else
        fsdpck_quantize_fp8_scaled(e->in.data, p->nrows, p->ncols, &blocks, fsdpck_quant_scale_dtype(form), codes,
                                   e->wide.data);
    narrow_scales(e, n, scales);
    return 0;
}

/* Quantizes e->in. codes NULL: only scales. */
static int quantize(struct fsdpck_quant_encoder *e, const struct fsdpck_quant_piece *p, uint8_t *codes, void *scales,
                    struct fsdpck_error *err)
{
    const struct fsdpck_quant_target_form *form = e->form;
    const uint64_t n = p->nrows * p->ncols;
    switch (form->to) {
    case FSDPCK_TO_FP8_BLOCK:
    case FSDPCK_TO_FP8_SCALED: return quantize_fp8(e, p, codes, scales, err);
    case FSDPCK_TO_FP8_WHOLE:
        if (codes)
            fsdpck_quantize_fp8_by(e->in.data, n, e->target->global, codes);
        break;
    case FSDPCK_TO_MXFP8: fsdpck_quantize_mxfp8(e->in.data, n, form->mx, codes, scales); break;
    case FSDPCK_TO_MXFP4: fsdpck_quantize_mxfp4(e->in.data, n, form->mx, codes, scales); break;
    case FSDPCK_TO_NVFP4: fsdpck_quantize_nvfp4(e->in.data, n, e->target->global, form->nv, codes, scales); break;
    case FSDPCK_TO_NF4: fsdpck_quantize_nf4(e->in.data, n, form->group_cols, codes, scales); break;
    }
    return 0;
}

static void copy_rows(uint8_t *dst, uint64_t dst_pitch, const uint8_t *src, uint64_t src_pitch, uint64_t nrows)
{
    for (uint64_t i = 0; i < nrows; i++)
        memcpy(dst + i * dst_pitch, src + i * src_pitch, src_pitch);
}

/* Sizes of the codes and scales of a box, in bytes of a row. */
uint64_t fsdpck_quant_codes_pitch(const struct fsdpck_quant_target_form *form, uint64_t ncols)
{
    return ceil_div(ncols, form->per_byte);
}

uint64_t fsdpck_quant_scales_pitch(const struct fsdpck_quant_target_form *form, uint64_t ncols)
{
    return ceil_div(ncols, form->group_cols) * fsdpck_quant_scale_nbytes(form);
}

/* Quantizes a part of the piece. Where its columns are not all of the piece's, it is made aside first. */
static int quantize_part(struct fsdpck_quant_encoder *e, const struct fsdpck_quant_piece *p, float amax, void *ctx,
                         struct fsdpck_error *err)
{
    const struct fsdpck_quant_target_form *form = e->form;
    const bool codes = *(const bool *)ctx, alone = p->ncols == e->piece.ncols;
    const uint64_t grid_rows = ceil_div(p->nrows, form->group_rows), at = p->col - e->piece.col;
    const uint64_t nbytes = fsdpck_quant_codes_pitch(form, p->ncols),
                   pitch = fsdpck_quant_codes_pitch(form, e->piece.ncols);
    const uint64_t scale_row = fsdpck_quant_scales_pitch(form, p->ncols),
                   scale_pitch = fsdpck_quant_scales_pitch(form, e->piece.ncols);
    uint8_t *to = codes ? (uint8_t *)e->codes.data + (p->row - e->piece.row) * pitch + at / form->per_byte : NULL;
    uint8_t *scales_to = (uint8_t *)e->scales.data + (p->row - e->piece.row) / form->group_rows * scale_pitch +
                         fsdpck_quant_scales_pitch(form, at);
    (void)amax;
    if (alone)
        return quantize(e, p, to, scales_to, err);
    int rc = fsdpck_quant_reserve(&e->part, p->nrows * nbytes + grid_rows * scale_row, err);
    if (rc)
        return rc;
    uint8_t *own_scales = e->part.data, *own = own_scales + grid_rows * scale_row;
    rc = quantize(e, p, codes ? own : NULL, own_scales, err);
    if (codes && !rc)
        copy_rows(to, pitch, own, nbytes, p->nrows);
    copy_rows(scales_to, scale_pitch, own_scales, scale_row, grid_rows);
    return rc;
}

/* ---- scales that are kept ---- */

/* A row of scales is a unit, in a flat form a single scale. */
static uint64_t unit_nbytes(const struct fsdpck_quant_target_form *form, const struct fsdpck_quant_target *t)
{
    return form->flat ? fsdpck_quant_scale_nbytes(form) : fsdpck_quant_scales_pitch(form, t->cols);
}

/* Keeps the scales of the piece, if its units are whole. */
static void keep_scales(const struct fsdpck_quant_encoder *e)
{
    const struct fsdpck_quant_target_form *form = e->form;
    const struct fsdpck_quant_piece *p = &e->piece;
    struct fsdpck_quant_target *t = e->target;
    if (form->to == FSDPCK_TO_FP8_WHOLE || (!form->flat && p->ncols != t->cols))
        return;
    const uint64_t first = form->flat ? p->col / form->group_cols : p->row / form->group_rows;
    const uint64_t n = form->flat ? ceil_div(p->ncols, form->group_cols) : ceil_div(p->nrows, form->group_rows);
    pthread_mutex_lock(&t->lock);
    t->kept.unit_nbytes = unit_nbytes(form, t);
    t->kept.nunits = form->flat ? ceil_div(t->cols, form->group_cols) : ceil_div(t->rows, form->group_rows);
    fsdpck_kept_scales_add(&t->kept, &e->targets->kept_nbytes, first, n, e->scales.data);
    pthread_mutex_unlock(&t->lock);
}

/* Whether the box of scales was kept, and is copied. */
bool fsdpck_quant_take_scales(const struct fsdpck_quant_encoder *e, struct fsdpck_quant_target *t,
                              const struct fsdpck_matrix_box *box, void *dst, uint64_t stride)
{
    const bool flat = e->form->flat;
    const uint64_t item = fsdpck_quant_scale_nbytes(e->form);
    pthread_mutex_lock(&t->lock);
    const bool done = fsdpck_kept_scales_take(&t->kept, &e->targets->kept_nbytes, flat ? box->col : box->row,
                                              flat ? box->ncols : box->nrows, flat ? 0 : box->col * item,
                                              flat ? item : box->ncols * item, dst, flat ? item : stride);
    if (t->nested)
        t->kept.ntaken = 0; /* they are asked for twice */
    pthread_mutex_unlock(&t->lock);
    return done;
}

static int run_piece(struct fsdpck_quant_encoder *e, struct fsdpck_fetch *f, bool codes, struct fsdpck_error *err)
{
    const struct fsdpck_quant_piece *p = &e->piece;
    const uint64_t most = FSDPCK_QUANT_TILE_NELEM / p->nrows / e->form->group_cols * e->form->group_cols;
    const uint64_t ncols = p->nrows * p->ncols <= FSDPCK_QUANT_TILE_NELEM ? p->ncols : most;
    int rc = fsdpck_quant_reserve(
        &e->scales, ceil_div(p->nrows, e->form->group_rows) * fsdpck_quant_scales_pitch(e->form, p->ncols), err);
    if (!rc && codes)
        rc = fsdpck_quant_reserve(&e->codes, p->nrows * fsdpck_quant_codes_pitch(e->form, p->ncols), err);
    for (uint64_t at = 0; at < p->ncols && !rc; at += ncols) {
        const struct fsdpck_quant_piece tile = { p->row, p->nrows, p->col + at, least(ncols, p->ncols - at) };
        rc = fsdpck_quant_each_part(e, f, &tile, quantize_part, &codes, err);
    }
    if (!rc && codes && !f->dry)
        keep_scales(e);
    return !rc && codes && !f->dry && e->watch ? e->watch(e->watch_ctx, e, err) : rc;
}

/* All rows of a matrix, and as many columns as fit: its values lie by columns. */
static struct fsdpck_quant_piece turned_piece_at(const struct fsdpck_quant_encoder *e, uint64_t row, uint64_t col)
{
    const uint64_t gc = e->form->group_cols, rows = e->target->turned_rows,
                   most = FSDPCK_QUANT_TILE_NELEM / rows / gc * gc;
    struct fsdpck_quant_piece p = { .row = row / rows * rows, .nrows = rows, .col = most ? col / most * most : 0 };
    p.ncols = least(most, e->target->cols - p.col);
    return p;
}

/* The piece that holds element (row, col), of those that the box needs. */
static struct fsdpck_quant_piece piece_at(const struct fsdpck_quant_encoder *e, const struct fsdpck_quant_piece *box,
                                          uint64_t row, uint64_t col)
{
    const uint64_t gr = e->form->group_rows, gc = e->form->group_cols, rows = e->target->rows, cols = e->target->cols;
    const bool strip = gr > 1 && cols <= FSDPCK_QUANT_STRIP_NELEM / gr;
    if (e->target->turned_rows)
        return turned_piece_at(e, row, col);
    struct fsdpck_quant_piece p = { .row = row / gr * gr, .col = strip ? 0 : col / gc * gc };
    uint64_t end = strip ? cols : least(ceil_div(box->col + box->ncols, gc) * gc, cols);
    const uint64_t blocks = FSDPCK_QUANT_TILE_NELEM / gr / gc * gc; /* 0: the weight is one block, which may be cut */
    p.ncols = strip ? cols : least(end - p.col, blocks ? blocks : FSDPCK_QUANT_TILE_NELEM / gr);
    uint64_t most = FSDPCK_QUANT_PIECE_NELEM / p.ncols / gr * gr;
    p.nrows = least(ceil_div(box->row + box->nrows, gr) * gr, rows) - p.row;
    p.nrows = least(p.nrows, most ? most : gr);
    return p;
}

bool fsdpck_quant_holds(const struct fsdpck_quant_encoder *e, const struct fsdpck_quant_target *t, uint64_t row,
                        uint64_t col, bool codes, bool dry)
{
    return e->target == t && e->dry == dry && (e->has_codes || !codes) && row - e->piece.row < e->piece.nrows &&
           col - e->piece.col < e->piece.ncols;
}

int fsdpck_quant_load_piece(struct fsdpck_quant_encoder *e, struct fsdpck_fetch *f, struct fsdpck_quant_target *t,
                            const struct fsdpck_quant_piece *box, uint64_t row, uint64_t col, bool codes,
                            struct fsdpck_error *err)
{
    if (fsdpck_quant_holds(e, t, row, col, codes, f->dry))
        return 0;
    e->target = t;
    e->has_codes = codes;
    e->dry = f->dry;
    int rc = fsdpck_quant_need_global(e, f, err);
    e->piece = piece_at(e, box, row, col);
    if (!rc)
        rc = run_piece(e, f, codes, err);
    if (rc)
        e->target = NULL;
    return rc;
}
