/* SPDX-License-Identifier: Apache-2.0 */
#include "lora/merged_view.h"
#include "lora/requantize_impl.h"

static void add_rounding(struct fsdpck_rounding *sum, double error, double change)
{
    pthread_mutex_lock(&sum->lock);
    sum->error += error;
    sum->change += change;
    pthread_mutex_unlock(&sum->lock);
}

/* Measures elements [col, col + ncols) of a row of the weight (of a flat one: its only row). codes: theirs. */
static int measure_row(const struct requantize_view *v, struct requantize_state *s, struct fsdpck_quant_target *t,
                       uint64_t row, uint64_t col, uint64_t ncols, const uint8_t *codes, struct fsdpck_error *err)
{
    const struct fsdpck_quant_target_form *form = t->form;
    struct fsdpck_rounding *sum = &v->rounding[t - v->targets.list];
    struct fsdpck_fetch uncounted = { .src = v->merged }; /* these reads are no part of the merge */
    const uint64_t first = col / form->group_cols, end = (col + ncols - 1) / form->group_cols + 1;
    const uint64_t at = row * t->cols + col;
    const uint64_t grid_row = form->flat ? 0 : row / form->group_rows;
    const struct fsdpck_matrix_box box = t->scales_in_line
                                             ? (struct fsdpck_matrix_box){ 0, 1, grid_row, 1 }
                                             : (struct fsdpck_matrix_box){ grid_row, 1, first, end - first };
    float *before = s->room, *exact = before + REQUANTIZE_PIECE_NELEM;
    double error = 0, change = 0;
    const uint64_t item = fsdpck_dtype_info(fsdpck_quant_scale_dtype(form))->nbytes;
    int rc = fsdpck_quant_reserve(&s->scales, (end - first) * item, err);
    if (!rc)
        rc = fsdpck_values_input_range(&uncounted, &s->before, t->inner, at, at + ncols, before, err);
    if (!rc)
        rc = fsdpck_lora_merged_apply(v->merged, t->inner, at, ncols, before, exact, err);
    if (!rc)
        rc = fsdpck_quant_encode(&s->encoder, &uncounted, t, t->nested ? FSDPCK_OUT_SEEN : FSDPCK_OUT_SCALES, &box,
                                 s->scales.data, s->scales.nbytes, err);
    if (rc)
        return rc;
    const struct fsdpck_rounding_row r = {
        codes, s->scales.data, col - first * form->group_cols, ncols, before, exact
    };
    fsdpck_rounding_add(form, t->global, &r, exact + REQUANTIZE_PIECE_NELEM, &error, &change);
    add_rounding(sum, error, change);
    return 0;
}

int fsdpck_lora_requantize_measure(const struct requantize_view *v, struct requantize_state *s,
                                   struct fsdpck_quant_target *t, const struct fsdpck_matrix_box *box,
                                   const uint8_t *codes, uint64_t stride, struct fsdpck_error *err)
{
    const bool flat = t->form->flat; /* codes are a column of single bytes */
    const uint64_t first = (flat ? box->row : box->col) * t->form->per_byte, nrows = flat ? 1 : box->nrows;
    uint64_t end = first + (flat ? box->nrows : box->ncols) * t->form->per_byte;
    int rc = 0;
    end = end < t->cols ? end : t->cols;
    for (uint64_t i = 0; i < nrows && !rc; i++)
        for (uint64_t col = first; col < end && !rc; col += REQUANTIZE_PIECE_NELEM)
            rc = measure_row(v, s, t, flat ? 0 : box->row + i, col,
                             end - col < REQUANTIZE_PIECE_NELEM ? end - col : REQUANTIZE_PIECE_NELEM,
                             codes + i * stride + (col - first) / t->form->per_byte, err);
    return rc;
}

/* Part of a piece whose values lie by columns. Its codes are in one run: it has all columns, or one row. values:
 * before, then exact, (columns, rows). */
static void measure_turned_part(const struct requantize_state *s, const struct fsdpck_quant_encoder *e,
                                const struct fsdpck_matrix_box *part, const float *values, double *error,
                                double *change)
{
    const struct fsdpck_quant_piece *p = &e->piece;
    const uint64_t first = part->row * p->ncols + part->col;
    float *before = s->room, *exact = before + REQUANTIZE_PIECE_NELEM;
    for (uint64_t k = 0; k < part->ncols; k++)
        for (uint64_t i = 0; i < part->nrows; i++) {
            const float *column = values + (part->col + k) * p->nrows + part->row + i;
            before[i * part->ncols + k] = column[0];
            exact[i * part->ncols + k] = column[p->ncols * p->nrows];
        }
    const struct fsdpck_rounding_row r = { (const uint8_t *)e->codes.data + first / e->form->per_byte,
                                           (const uint8_t *)e->scales.data + first / e->form->group_cols,
                                           0,
                                           part->nrows * part->ncols,
                                           before,
                                           exact };
    fsdpck_rounding_add(e->form, 0, &r, exact + REQUANTIZE_PIECE_NELEM, error, change);
}

/* Takes as many whole rows at once as there is room for, or parts of one. */
static void measure_turned_all(const struct requantize_state *s, const struct fsdpck_quant_encoder *e,
                               const float *values, double *error, double *change)
{
    const struct fsdpck_quant_piece *p = &e->piece;
    const uint64_t ncols = p->ncols < REQUANTIZE_PIECE_NELEM ? p->ncols : REQUANTIZE_PIECE_NELEM,
                   nrows = REQUANTIZE_PIECE_NELEM / ncols;
    for (uint64_t row = 0; row < p->nrows; row += nrows)
        for (uint64_t col = 0; col < p->ncols; col += ncols) {
            const struct fsdpck_matrix_box part = { row, p->nrows - row < nrows ? p->nrows - row : nrows, col,
                                                    p->ncols - col < ncols ? p->ncols - col : ncols };
            measure_turned_part(s, e, &part, values, error, change);
        }
}

int fsdpck_lora_requantize_measure_turned(void *ctx, struct fsdpck_quant_encoder *e, struct fsdpck_error *err)
{
    struct requantize_state *s = ctx;
    const struct requantize_view *v = s->view;
    const struct fsdpck_quant_target *t = e->target;
    const struct fsdpck_quant_piece *p = &e->piece;
    struct fsdpck_fetch uncounted = { .src = v->merged };
    const uint64_t n = p->nrows * p->ncols;
    double error = 0, change = 0;
    if (!t->turned_rows)
        return 0;
    const uint64_t first = (p->row / t->turned_rows * t->cols + p->col) * t->turned_rows;
    int rc = fsdpck_quant_reserve(&s->turned, 2 * n * sizeof(float), err);
    float *values = s->turned.data;
    if (!rc)
        rc = fsdpck_values_input_range(&uncounted, &s->before, t->inner, first, first + n, values, err);
    if (!rc)
        rc = fsdpck_lora_merged_apply(v->merged, t->inner, first, n, values, values + n, err);
    if (!rc && n)
        measure_turned_all(s, e, values, &error, &change);
    add_rounding(&v->rounding[t - v->targets.list], error, change);
    return rc;
}
