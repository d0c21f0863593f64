/* SPDX-License-Identifier: Apache-2.0 */
/* Changes values: converts a range of a tensor's stored elements to float32, tile by tile, changes them, and rounds
 * once. Many threads call it at the same time with ranges of any length, so only the factors are kept between calls. */
#include "lora/merge_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/pool.h"
#include "engine/fetch.h"
#include "lora/product.h"

enum { ROWS = FSDPCK_TILE_ROWS, COLS = FSDPCK_TILE_COLS, BAND_ELEMENTS = 1 << 18, PLAIN_ELEMENTS = 1 << 16 };

struct values {
    const struct fsdpck_lora_merge *m;
    const struct lora_target *t;
    enum fsdpck_dtype from, to;
    const uint8_t *in;
    uint8_t *out; /* NULL: sum up squares instead */
    uint64_t begin;
    double *squares; /* of each row, or of each column if transposed */
    bool by_column;
};

/* ---- one tile: rows [i, i + nr) by columns [j, j + nc) of the tensor ---- */

struct tile {
    uint64_t i, nr, j, nc, ncol;
    float v[ROWS * COLS];
};

static void add_products(const struct values *x, struct tile *t)
{
    const struct fsdpck_operand_set *p = x->t->products;
    for (size_t k = 0; p && k < p->count; k++) {
        const struct fsdpck_operand *o = &p->list[k];
        float scale = (float)fsdpck_lora_scale(x->m->adapter, o->module);
        uint64_t first = t->i > o->row ? t->i : o->row,
                 end = t->i + t->nr < o->row + o->nrow ? t->i + t->nr : o->row + o->nrow;
        if (first < end)
            fsdpck_product_add(t->v + (first - t->i) * COLS, COLS, o->left + (first - o->row) * o->module->r,
                               o->right + t->j, o->module->r, o->ncol, end - first, t->nc, scale);
    }
}

static void add_squares(const struct values *x, const struct tile *t)
{
    for (uint64_t i = 0; i < t->nr; i++)
        for (uint64_t j = 0; j < t->nc; j++) {
            double v = t->v[i * COLS + j];
            x->squares[x->by_column ? t->j + j : t->i + i] += v * v;
        }
}

static void scale_magnitude(const struct values *x, struct tile *t)
{
    const float *f = x->t->factor;
    bool by_column = x->t->products->list->transposed;
    for (uint64_t i = 0; i < t->nr; i++)
        for (uint64_t j = 0; j < t->nc; j++)
            t->v[i * COLS + j] *= f[by_column ? t->j + j : t->i + i];
}

static void run_tile(const struct values *x, struct tile *t)
{
    uint64_t from = fsdpck_dtype_info(x->from)->nbytes, to = fsdpck_dtype_info(x->to)->nbytes;
    for (uint64_t i = 0; i < t->nr; i++)
        fsdpck_dtype_cast(x->from, x->in + ((t->i + i) * t->ncol + t->j - x->begin) * from, FSDPCK_FLOAT32,
                          t->v + i * COLS, t->nc);
    add_products(x, t);
    if (!x->out) {
        add_squares(x, t);
        return;
    }
    if (x->t->factor)
        scale_magnitude(x, t);
    for (uint64_t i = 0; i < t->nr; i++)
        fsdpck_dtype_cast(FSDPCK_FLOAT32, t->v + i * COLS, x->to,
                          x->out + ((t->i + i) * t->ncol + t->j - x->begin) * to, t->nc);
}

/* Rows [i, i + nrows), columns [j, end). */
static void run_block(const struct values *x, uint64_t ncol, uint64_t i, uint64_t nrows, uint64_t j, uint64_t end)
{
    struct tile t = { .ncol = ncol };
    for (t.j = j; t.j < end; t.j += COLS) {
        t.nc = end - t.j < COLS ? end - t.j : COLS;
        for (t.i = i; t.i < i + nrows; t.i += ROWS) {
            t.nr = i + nrows - t.i < ROWS ? i + nrows - t.i : ROWS;
            run_tile(x, &t);
        }
    }
}

/* Handles a range that begins and ends anywhere: the rest of a row, whole rows, the beginning of a row. */
static void run_range(const struct values *x, uint64_t ncol, uint64_t begin, uint64_t end)
{
    uint64_t i = begin / ncol, j = begin % ncol;
    if (j) {
        uint64_t stop = ncol - j < end - begin ? ncol : j + (end - begin);
        run_block(x, ncol, i++, 1, j, stop);
    }
    if (i * ncol >= end)
        return;
    uint64_t whole = end / ncol - i;
    run_block(x, ncol, i, whole, 0, whole ? ncol : 0);
    if (end % ncol)
        run_block(x, ncol, i + whole, 1, 0, end % ncol);
}

/* ---- other changes ---- */

static int read_some(const struct fsdpck_lora_merge *m, int64_t position, uint64_t begin, uint64_t nelem, float *out,
                     struct fsdpck_error *err)
{
    return fsdpck_lora_read(m->adapter->src, m->adapter->selection.tensors[position].source, begin, nelem, out, err);
}

/* Elements [at, at + n) of the range: takes a saved copy instead of the base's values, then adds a bias of LoRA's B. v:
 * (2 * n) */
static int change_some(const struct values *x, uint64_t at, uint64_t n, float *v, struct fsdpck_error *err)
{
    uint64_t from = fsdpck_dtype_info(x->from)->nbytes, to = fsdpck_dtype_info(x->to)->nbytes;
    float *add = v + n, scale = x->t->vector ? (float)fsdpck_lora_scale(x->m->adapter, x->t->vector) : 0;
    int rc = 0;
    if (x->t->whole)
        rc = read_some(x->m, x->t->whole->position, x->begin + at, n, v, err);
    else
        fsdpck_dtype_cast(x->from, x->in + at * from, FSDPCK_FLOAT32, v, n);
    if (!rc && x->t->vector)
        rc = read_some(x->m, x->t->vector->bias, x->begin + at, n, add, err);
    for (uint64_t i = 0; !rc && x->t->vector && i < n; i++)
        v[i] += scale * add[i];
    if (!rc)
        fsdpck_dtype_cast(FSDPCK_FLOAT32, v, x->to, x->out + at * to, n);
    return rc;
}

static int change_plainly(const struct values *x, uint64_t nelem, struct fsdpck_error *err)
{
    uint64_t most = nelem < PLAIN_ELEMENTS ? nelem : PLAIN_ELEMENTS;
    float *v = malloc(2 * most * sizeof *v);
    int rc = v ? 0 : fsdpck_error_nomem(err, 2 * most * sizeof *v);
    for (uint64_t at = 0; at < nelem && !rc; at += most)
        rc = change_some(x, at, nelem - at < most ? nelem - at : most, v, err);
    free(v);
    return rc;
}

/* Overwrites the rows of trained tokens. */
static int change_rows(const struct values *x, uint64_t nelem, struct fsdpck_error *err)
{
    const struct fsdpck_lora_tokens *k = x->t->tokens;
    uint64_t ncol = lora_tensor(x->m->adapter, k->position)->shape[1], to = fsdpck_dtype_info(x->to)->nbytes,
             end = x->begin + nelem;
    float *v = malloc(ncol * sizeof *v);
    int rc = v ? 0 : fsdpck_error_nomem(err, ncol * sizeof *v);
    for (size_t i = 0; i < k->nrows && !rc; i++) {
        uint64_t first = k->rows[i] * ncol, a = first > x->begin ? first : x->begin,
                 b = first + ncol < end ? first + ncol : end;
        if (a >= b)
            continue;
        rc = read_some(x->m, k->position, i * ncol + (a - first), b - a, v, err);
        if (!rc)
            fsdpck_dtype_cast(FSDPCK_FLOAT32, v, x->to, x->out + (a - x->begin) * to, b - a);
    }
    free(v);
    return rc;
}

/* Adds products to a whole copy; the base's values are not used. */
static int run_on_whole(const struct values *x, uint64_t ncol, uint64_t nelem, struct fsdpck_error *err)
{
    uint64_t to = fsdpck_dtype_info(x->to)->nbytes, most = nelem < PLAIN_ELEMENTS ? nelem : PLAIN_ELEMENTS;
    float *v = malloc(most * sizeof *v);
    int rc = v ? 0 : fsdpck_error_nomem(err, most * sizeof *v);
    for (uint64_t at = 0; at < nelem && !rc; at += most) {
        uint64_t n = nelem - at < most ? nelem - at : most;
        struct values y = *x;
        rc = read_some(x->m, x->t->whole->position, x->begin + at, n, v, err);
        y.from = FSDPCK_FLOAT32;
        y.in = (const uint8_t *)v;
        y.begin = x->begin + at;
        y.out = x->out ? x->out + at * to : NULL;
        if (!rc)
            run_range(&y, ncol, y.begin, y.begin + n);
    }
    free(v);
    return rc;
}

static int change_by_products(const struct values *x, uint64_t nelem, struct fsdpck_error *err)
{
    struct fsdpck_operand_set *p = x->t->products;
    int rc = fsdpck_operands_acquire(x->m->operands, p, err);
    if (rc)
        return rc;
    if (x->t->whole)
        rc = run_on_whole(x, p->list->ncol, nelem, err);
    else
        run_range(x, p->list->ncol, x->begin, x->begin + nelem);
    fsdpck_operands_release(x->m->operands, p);
    return rc;
}

int fsdpck_lora_merge_apply(void *ctx, uint32_t tensor, uint64_t begin, uint64_t nelem, const void *in, void *out,
                            struct fsdpck_error *err)
{
    struct fsdpck_lora_merge *m = ctx;
    struct lora_target *t = m->targets[tensor];
    struct values x = { .m = m,
                        .t = t,
                        .from = lora_base_tensor(m, t)->dtype,
                        .to = m->selection->tensors[tensor].dtype,
                        .in = in,
                        .out = out,
                        .begin = begin };
    int rc = t->products ? change_by_products(&x, nelem, err) : change_plainly(&x, nelem, err);
    return !rc && t->tokens ? change_rows(&x, nelem, err) : rc;
}

/* ---- DoRA ---- */

static int add_up(const struct fsdpck_lora_merge *m, struct lora_target *t, double *squares, struct fsdpck_error *err)
{
    const struct fsdpck_tensor *w = lora_base_tensor(m, t);
    const struct fsdpck_operand *o = t->products->list;
    struct fsdpck_fetch f = { 0 };
    uint64_t item = fsdpck_dtype_info(w->dtype)->nbytes, most = w->nelem < BAND_ELEMENTS ? w->nelem : BAND_ELEMENTS;
    uint8_t *raw = malloc(most * item + 1);
    struct values x = {
        .m = m, .t = t, .from = w->dtype, .to = w->dtype, .in = raw, .squares = squares, .by_column = o->transposed
    };
    int rc = raw ? fsdpck_fetch_init(&f, m->base, err) : fsdpck_error_nomem(err, most * item);
    if (!rc && t->whole)
        rc = run_on_whole(&x, o->ncol, w->nelem, err);
    for (uint64_t at = 0; !t->whole && at < w->nelem && !rc; at += most) {
        uint64_t end = w->nelem - at < most ? w->nelem : at + most;
        rc = fsdpck_fetch_range(&f, m->selection->tensors[t->chosen].source, at, end, raw, err);
        x.begin = at;
        if (!rc)
            run_range(&x, o->ncol, at, end);
    }
    fsdpck_fetch_free(&f);
    free(raw);
    return rc;
}

static int divide(const struct fsdpck_lora_merge *m, const struct lora_target *t, const double *squares, uint64_t n,
                  struct fsdpck_error *err)
{
    int64_t position = t->products->list->module->magnitude;
    int rc = fsdpck_lora_read(m->adapter->src, m->adapter->selection.tensors[position].source, 0, n, t->factor, err);
    for (uint64_t i = 0; i < n && !rc; i++) {
        t->factor[i] /= (float)sqrt(squares[i]);
        if (!isfinite(t->factor[i]))
            rc = fsdpck_lora_refuse(m->adapter, position, FSDPCK_ERR_FORMAT, err,
                                    "output %llu of the base and its change have norm %g: DoRA divides by it",
                                    (unsigned long long)i, sqrt(squares[i]));
    }
    return rc;
}

static int make_factor(void *ctx, size_t number, unsigned worker, struct fsdpck_error *err)
{
    struct fsdpck_lora_merge *m = ctx;
    struct lora_target *t = ((struct lora_target **)m->list.data)[number];
    (void)worker;
    if (!t->products || t->products->list->module->magnitude < 0)
        return 0;
    uint64_t n = t->products->list->transposed ? t->products->list->ncol : t->products->list->nrow;
    double *squares = calloc(n, sizeof *squares);
    int rc =
        squares ? fsdpck_operands_acquire(m->operands, t->products, err) : fsdpck_error_nomem(err, n * sizeof *squares);
    if (!rc) {
        rc = add_up(m, t, squares, err);
        fsdpck_operands_release(m->operands, t->products);
    }
    if (!rc)
        rc = divide(m, t, squares, n, err);
    free(squares);
    return rc;
}

int fsdpck_lora_merge_factors(struct fsdpck_lora_merge *m, struct fsdpck_error *err)
{
    bool any = false;
    for (size_t i = 0; i < m->list.count; i++) {
        struct lora_target *t = ((struct lora_target **)m->list.data)[i];
        const struct fsdpck_operand *o = t->products ? t->products->list : NULL;
        if (!o || o->module->magnitude < 0)
            continue;
        any = true;
        t->factor = fsdpck_arena_array(&m->arena, o->transposed ? o->ncol : o->nrow, sizeof *t->factor, err);
        if (!t->factor)
            return FSDPCK_ERR_NOMEM;
    }
    return any ? fsdpck_pool_run(m->opt->nthreads, m->list.count, make_factor, m, m->opt->stop, err) : 0;
}
