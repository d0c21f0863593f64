/* SPDX-License-Identifier: Apache-2.0 */
/* Boxes of codes and scales from pieces of weights (encode_pieces.h). */
#include "quant/encode.h"

#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "quant/encode_parts.h"
#include "quant/encode_pieces.h"

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t ceil_div(uint64_t a, uint64_t b)
{
    return a / b + (a % b != 0);
}

int fsdpck_quant_encoder_init(struct fsdpck_quant_encoder *e, struct fsdpck_source *src,
                              struct fsdpck_quant_targets *targets, struct fsdpck_error *err)
{
    memset(e, 0, sizeof *e);
    e->targets = targets;
    e->counted = calloc(targets->count, sizeof *e->counted);
    return e->counted ? fsdpck_fetch_init(&e->fetch, src, err) : fsdpck_error_nomem(err, targets->count);
}

void fsdpck_quant_encoder_free(struct fsdpck_quant_encoder *e)
{
    fsdpck_fetch_free(&e->fetch);
    free(e->counted);
    free(e->raw.data);
    free(e->in.data);
    free(e->part.data);
    free(e->codes.data);
    free(e->scales.data);
    free(e->wide.data);
    free(e->nested.data);
}

static uint64_t pieces_nbytes(const struct fsdpck_quant_target *t)
{
    const struct fsdpck_quant_target_form *form = t->form;
    const uint64_t codes = form->group_rows > 1 ? FSDPCK_QUANT_STRIP_NELEM : FSDPCK_QUANT_TILE_NELEM;
    const uint64_t group = form->group_rows * least(form->group_cols, t->cols);
    const uint64_t part = group > FSDPCK_QUANT_PART_NELEM ? group : FSDPCK_QUANT_PART_NELEM;
    return FSDPCK_QUANT_TILE_NELEM * sizeof(float) + part * (sizeof(float) + 2) + codes +
           3 * codes / least(group ? group : 1, 64) * sizeof(float);
}

uint64_t fsdpck_quant_encoder_nbytes(const struct fsdpck_quant_targets *targets)
{
    uint64_t most = 0;
    for (size_t i = 0; i < targets->count; i++) {
        const uint64_t nbytes = pieces_nbytes(&targets->list[i]);
        most = nbytes > most ? nbytes : most;
    }
    return most + 6 * FSDPCK_PAGE_NBYTES + targets->count + FSDPCK_KEPT_SCALES_NBYTES;
}

/* ---- boxes ---- */

struct output {
    bool codes;
    uint64_t unit_rows, unit_cols; /* of the weight, for one element */
    uint64_t item;                 /* bytes of an element */
    uint64_t stride;
    uint8_t *dst;
};

/* Number of rows of the box, from `row` on, that are copied before the next ones: all that the piece holds if it holds
 * them whole, else those of one row of blocks, which every piece has. */
static uint64_t rows_at_once(const struct fsdpck_quant_encoder *e, const struct output *o,
                             const struct fsdpck_matrix_box *box, uint64_t row)
{
    const struct fsdpck_quant_piece *p = &e->piece;
    const uint64_t blocks = e->form->group_rows / o->unit_rows; /* output rows of a row of blocks */
    const bool whole = e->target->turned_rows || (box->col + box->ncols) * o->unit_cols <= p->col + p->ncols ||
                       p->col + p->ncols == e->target->cols;
    const uint64_t end = whole ? ceil_div(p->row + p->nrows, o->unit_rows) : (row / blocks + 1) * blocks;
    return least(end, box->row + box->nrows) - row;
}

/* Copies the columns that the piece holds of `nrows` rows of the box; returns their number. */
static uint64_t copy_piece(const struct fsdpck_quant_encoder *e, const struct output *o,
                           const struct fsdpck_matrix_box *box, uint64_t row, uint64_t nrows, uint64_t col)
{
    const struct fsdpck_quant_piece *p = &e->piece;
    const uint64_t pitch =
        o->codes ? fsdpck_quant_codes_pitch(e->form, p->ncols) : fsdpck_quant_scales_pitch(e->form, p->ncols);
    const uint64_t first_row = p->row / o->unit_rows, first_col = p->col / o->unit_cols;
    const uint64_t ncols = least(first_col + ceil_div(p->ncols, o->unit_cols), box->col + box->ncols) - col;
    const uint8_t *from = o->codes ? e->codes.data : e->scales.data;
    for (uint64_t i = 0; i < nrows && !e->dry; i++)
        memcpy(o->dst + (row + i - box->row) * o->stride + (col - box->col) * o->item,
               from + (row + i - first_row) * pitch + (col - first_col) * o->item, ncols * o->item);
    return ncols;
}

static int encode_box(struct fsdpck_quant_encoder *e, struct fsdpck_fetch *f, struct fsdpck_quant_target *t,
                      const struct output *o, const struct fsdpck_matrix_box *box, struct fsdpck_error *err)
{
    struct fsdpck_quant_piece want = { box->row * o->unit_rows, box->nrows * o->unit_rows, box->col * o->unit_cols,
                                       box->ncols * o->unit_cols };
    want.nrows = least(want.nrows, t->rows - want.row);
    want.ncols = least(want.ncols, t->cols - want.col);
    for (uint64_t row = box->row, nrows = 0; row < box->row + box->nrows; row += nrows)
        for (uint64_t col = box->col; col < box->col + box->ncols;) {
            int rc = fsdpck_quant_load_piece(e, f, t, &want, row * o->unit_rows, col * o->unit_cols, o->codes, err);
            if (rc)
                return rc;
            if (col == box->col)
                nrows = rows_at_once(e, o, box, row);
            col += copy_piece(e, o, box, row, nrows, col);
        }
    return 0;
}

/* The codes of a flat form are a column; as a row they are one run. */
static int encode_column(struct fsdpck_quant_encoder *e, struct fsdpck_fetch *f, struct fsdpck_quant_target *t,
                         struct output *o, const struct fsdpck_matrix_box *box, struct fsdpck_error *err)
{
    const uint64_t n = o->stride == o->item ? box->nrows : 1;
    int rc = 0;
    for (uint64_t i = 0; i < box->nrows && !rc; i += n) {
        const struct fsdpck_matrix_box row = { 0, 1, box->row + i, n };
        rc = encode_box(e, f, t, o, &row, err);
        o->dst = f->dry ? NULL : o->dst + o->stride;
    }
    return rc;
}

/* Codes that are listed with one more dimension lie in memory as rows do. */
static int encode_units(struct fsdpck_quant_encoder *e, struct fsdpck_fetch *f, struct fsdpck_quant_target *t,
                        struct output *o, const struct fsdpck_matrix_box *box, struct fsdpck_error *err)
{
    const uint64_t width = fsdpck_quant_codes_pitch(e->form, t->cols), unit = t->unit_nbytes;
    const bool dense = box->ncols == unit && o->stride == unit;
    uint8_t *dst = o->dst;
    int rc = 0;
    for (uint64_t i = 0; i < box->nrows && !rc; i += dense ? box->nrows : 1) {
        uint64_t at = (box->row + i) * unit + box->col, end = at + (dense ? box->nrows * unit : box->ncols);
        o->dst = f->dry ? NULL : dst + i * o->stride;
        while (at < end && !rc) { /* the rest of a row, whole rows, the start of a row */
            struct fsdpck_matrix_box part = { at / width, 1, at % width, least(width - at % width, end - at) };
            if (part.col == 0 && end - at >= width)
                part = (struct fsdpck_matrix_box){ at / width, (end - at) / width, 0, width };
            struct output to = *o;
            to.stride = width;
            rc = encode_box(e, f, t, &to, &part, err);
            o->dst = f->dry ? NULL : o->dst + part.nrows * part.ncols;
            at += part.nrows * part.ncols;
        }
    }
    return rc;
}

/* The scale of all scales, or of the whole weight. */
static int encode_global(struct fsdpck_quant_encoder *e, struct fsdpck_fetch *f, struct fsdpck_quant_target *t,
                         enum fsdpck_dtype dtype, void *dst, struct fsdpck_error *err)
{
    pthread_mutex_lock(&t->lock);
    const bool known = t->has_global;
    pthread_mutex_unlock(&t->lock);
    int rc = 0;
    if (f->dry || !known) {
        e->target = t;
        e->piece = (struct fsdpck_quant_piece){ 0 };
        rc = fsdpck_quant_need_global(e, f, err);
    }
    if (!rc && !f->dry)
        fsdpck_dtype_cast(FSDPCK_FLOAT32, &t->global, dtype, dst, 1);
    return rc;
}

int fsdpck_quant_encode_scales(struct fsdpck_quant_encoder *e, struct fsdpck_fetch *f, struct fsdpck_quant_target *t,
                               const struct fsdpck_matrix_box *want, void *dst, uint64_t stride,
                               struct fsdpck_error *err)
{
    const struct fsdpck_quant_target_form *form = e->form;
    const uint64_t item = fsdpck_quant_scale_nbytes(form);
    struct fsdpck_matrix_box box = *want;
    struct output o = { false, form->group_rows, form->group_cols, item, stride, dst };
    if (form->to == FSDPCK_TO_FP8_WHOLE)
        return encode_global(e, f, t, fsdpck_quant_scale_dtype(form), dst, err);
    if (t->scales_in_line) {
        box = (struct fsdpck_matrix_box){ box.col, box.ncols, 0, 1 };
        o.stride = item;
    }
    if (!f->dry && !fsdpck_quant_holds(e, t, box.row * o.unit_rows, box.col * o.unit_cols, false, false) &&
        fsdpck_quant_take_scales(e, t, &box, dst, o.stride))
        return 0;
    return encode_box(e, f, t, &o, &box, err);
}

int fsdpck_quant_encode(struct fsdpck_quant_encoder *e, struct fsdpck_fetch *f, struct fsdpck_quant_target *target,
                        enum fsdpck_quant_output output, const struct fsdpck_matrix_box *box, void *dst,
                        uint64_t stride, struct fsdpck_error *err)
{
    const struct fsdpck_quant_target_form *form = e->form = target->form;
    struct output o = { true, 1, form->per_byte, 1, stride, dst };
    switch (output) {
    case FSDPCK_OUT_GLOBAL: return encode_global(e, f, target, FSDPCK_FLOAT32, dst, err);
    case FSDPCK_OUT_NESTED:
    case FSDPCK_OUT_SEEN: return fsdpck_quant_encode_nested(e, f, target, output, box, dst, err);
    case FSDPCK_OUT_SCALES:
        return target->nested ? fsdpck_quant_encode_nested(e, f, target, output, box, dst, err)
                              : fsdpck_quant_encode_scales(e, f, target, box, dst, stride, err);
    case FSDPCK_OUT_MAP:
        if (!f->dry)
            memcpy(dst, fsdpck_nf4_values + box->col, box->ncols * sizeof *fsdpck_nf4_values);
        return 0;
    case FSDPCK_OUT_STATE:
        if (!f->dry)
            memcpy(dst, target->state + box->col, box->ncols);
        return 0;
    default:
        if (target->unit_nbytes)
            return encode_units(e, f, target, &o, box, err);
        return form->flat ? encode_column(e, f, target, &o, box, err) : encode_box(e, f, target, &o, box, err);
    }
}
