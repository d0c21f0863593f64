/* SPDX-License-Identifier: Apache-2.0 */
/* Presents the weighted averages of several sources. Every element is computed alone, in one order, so that the
 * shardings of the sources and of the output change no bit. */
#include "view/average.h"

#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "engine/checks.h"
#include "engine/value_inputs.h"
#include "engine/view.h"
#include "view/average_match.h"

#define PIECE_NBYTES (1u << 20) /* of one source at a time */
enum { BLOCK = 1024 };          /* elements that are widened at a time: they stay in the first-level cache */

struct view {
    struct fsdpck_view view;        /* of the first source */
    struct fsdpck_source **sources; /* (n) the first is &view.inner */
    double *weights;                /* (n) NULL: all 1 */
    double divisor;
    size_t n;
    bool cast; /* sums are rounded to `dtype`, not to the dtype of the sources */
    enum fsdpck_dtype dtype;
    struct fsdpck_vec averaged; /* struct fsdpck_averaged */
};

struct average_state {
    struct fsdpck_fetch *fetch; /* (n) one workspace for each source; the first one's scratch is that of all */
    size_t n;
    uint8_t *in; /* a piece of one source */
    void *sums;  /* (elements of a piece) float, or double for float64 */
};

static const struct fsdpck_averaged *averaged_at(const struct view *v, size_t ordinal)
{
    return (const struct fsdpck_averaged *)v->averaged.data + ordinal;
}

/* Of the tensor in one source; what the view presents may be cast. */
static enum fsdpck_dtype stored_dtype(const struct view *v, size_t ordinal, size_t source)
{
    return source_tensors(v->sources[source])[averaged_at(v, ordinal)->ordinals[source]].dtype;
}

/* Returns the bytes of an element in the source where they are most. */
static uint64_t widest_nbytes(const struct view *v, size_t ordinal)
{
    uint64_t widest = 0;
    for (size_t i = 0; i < v->n; i++) {
        const uint64_t item = fsdpck_dtype_info(stored_dtype(v, ordinal, i))->nbytes;
        widest = item > widest ? item : widest;
    }
    return widest;
}

/* ---- sums ---- */

/* Product and sum are two functions: a compiler may contract them to an FMA where they are one loop, which has other
 * bits. wide: the elements are double, else float, and so is the factor. */
static void scale(void *x, bool wide, double by, size_t n)
{
    const float narrow = (float)by;
    for (size_t i = 0; wide && i < n; i++)
        ((double *)x)[i] *= by;
    for (size_t i = 0; !wide && i < n; i++)
        ((float *)x)[i] *= narrow;
}

static void divide(void *x, bool wide, double by, size_t n)
{
    const float narrow = (float)by;
    for (size_t i = 0; wide && i < n; i++)
        ((double *)x)[i] /= by;
    for (size_t i = 0; !wide && i < n; i++)
        ((float *)x)[i] /= narrow;
}

static void add(void *restrict sums, const void *restrict terms, bool wide, size_t n)
{
    for (size_t i = 0; wide && i < n; i++)
        ((double *)sums)[i] += ((const double *)terms)[i];
    for (size_t i = 0; !wide && i < n; i++)
        ((float *)sums)[i] += ((const float *)terms)[i];
}

struct number_type {
    enum fsdpck_dtype dtype;
    uint64_t item;
};

struct piece { /* of a tensor that is being summed */
    struct number_type sum, out;
    uint8_t *sums;
    uint64_t nelem;
};

/* Adds weight * in. The first product is stored, not added to 0, which would turn -0 into 0. */
static void add_source(const struct piece *p, struct number_type type, const uint8_t *in, double weight, bool first)
{
    const bool wide = p->sum.dtype == FSDPCK_FLOAT64;
    double terms[BLOCK];
    for (uint64_t at = 0, n; at < p->nelem; at += n) {
        void *sums = p->sums + at * p->sum.item, *to = first ? sums : terms;
        n = p->nelem - at < BLOCK ? p->nelem - at : BLOCK;
        fsdpck_dtype_cast(type.dtype, in + at * type.item, p->sum.dtype, to, n);
        if (weight != 1)
            scale(to, wide, weight, n);
        if (!first)
            add(sums, to, wide, n);
    }
}

static void finish(const struct piece *p, double divisor, uint8_t *dst)
{
    for (uint64_t at = 0, n; at < p->nelem; at += n) {
        void *sums = p->sums + at * p->sum.item;
        n = p->nelem - at < BLOCK ? p->nelem - at : BLOCK;
        if (divisor != 1)
            divide(sums, p->sum.dtype == FSDPCK_FLOAT64, divisor, n);
        fsdpck_dtype_cast(p->sum.dtype, sums, p->out.dtype, dst + at * p->out.item, n);
    }
}

/* ---- ranges ---- */

static int read_piece(struct fsdpck_fetch *f, struct average_state *s, const struct fsdpck_averaged *x, size_t source,
                      uint64_t begin, uint64_t nelem, void *dst, struct fsdpck_error *err)
{
    return fsdpck_values_input_range(f, &s->fetch[source], x->ordinals[source], begin, begin + nelem, dst, err);
}

static struct number_type number_type(enum fsdpck_dtype dtype)
{
    return (struct number_type){ dtype, fsdpck_dtype_info(dtype)->nbytes };
}

static int sum_piece(struct fsdpck_fetch *f, struct average_state *s, size_t ordinal, uint64_t begin, uint64_t nelem,
                     void *dst, struct fsdpck_error *err)
{
    const struct view *v = f->src->impl;
    const struct piece p = { .sum = number_type(widest_nbytes(v, ordinal) > 4 ? FSDPCK_FLOAT64 : FSDPCK_FLOAT32),
                             .out = number_type(source_tensors(f->src)[ordinal].dtype),
                             .sums = s->sums,
                             .nelem = nelem };
    int rc = 0;
    for (size_t i = 0; i < v->n && !rc; i++) {
        rc = read_piece(f, s, averaged_at(v, ordinal), i, begin, nelem, s->in, err);
        if (!rc && !f->dry)
            add_source(&p, number_type(stored_dtype(v, ordinal, i)), s->in, v->weights ? v->weights[i] : 1, i == 0);
    }
    if (!rc && !f->dry)
        finish(&p, v->divisor, dst);
    return rc;
}

static int differs(const struct fsdpck_fetch *f, size_t ordinal, size_t source, uint64_t element,
                   struct fsdpck_error *err)
{
    const struct view *v = f->src->impl;
    const struct fsdpck_tensor *t = &source_tensors(f->src)[ordinal];
    fsdpck_error_set(err, FSDPCK_ERR_FORMAT, v->sources[source]->path,
                     "element %llu differs from that of %s; values of %s have no average, so all sources must hold "
                     "the same ones",
                     (unsigned long long)element, v->view.inner.path, fsdpck_dtype_info(t->dtype)->name);
    fsdpck_error_tensor(err, t->name);
    fsdpck_error_hint(err, "--exclude leaves a tensor out of every source");
    return FSDPCK_ERR_FORMAT;
}

/* Of integers and the like: takes those of the first source, after comparing them with all others. */
static int compare_piece(struct fsdpck_fetch *f, struct average_state *s, size_t ordinal, uint64_t begin,
                         uint64_t nelem, uint8_t *dst, struct fsdpck_error *err)
{
    const struct view *v = f->src->impl;
    const uint64_t item = fsdpck_dtype_info(source_tensors(f->src)[ordinal].dtype)->nbytes;
    int rc = read_piece(f, s, averaged_at(v, ordinal), 0, begin, nelem, dst, err);
    for (size_t i = 1; i < v->n && !rc; i++) {
        rc = read_piece(f, s, averaged_at(v, ordinal), i, begin, nelem, s->in, err);
        for (uint64_t k = 0; k < nelem && !rc && !f->dry && memcmp(dst, s->in, nelem * item) != 0; k++)
            if (memcmp(dst + k * item, s->in + k * item, item) != 0)
                return differs(f, ordinal, i, begin + k, err);
    }
    return rc;
}

static int compute_range(struct fsdpck_fetch *f, struct average_state *s, size_t ordinal, uint64_t begin,
                         uint64_t nelem, uint8_t *dst, struct fsdpck_error *err)
{
    const enum fsdpck_dtype in = stored_dtype(f->src->impl, ordinal, 0);
    const uint64_t most = PIECE_NBYTES / widest_nbytes(f->src->impl, ordinal),
                   item = fsdpck_dtype_info(source_tensors(f->src)[ordinal].dtype)->nbytes;
    int rc = 0;
    for (uint64_t at = 0, n; at < nelem && !rc; at += n) {
        n = nelem - at < most ? nelem - at : most;
        uint8_t *to = f->dry ? NULL : dst + at * item;
        rc = fsdpck_average_sums(in) ? sum_piece(f, s, ordinal, begin + at, n, to, err)
                                     : compare_piece(f, s, ordinal, begin + at, n, to, err);
    }
    return rc;
}

/* ---- the view's values ---- */

static bool has(const struct fsdpck_source *src, size_t ordinal)
{
    (void)src;
    (void)ordinal;
    return true;
}

static int inputs(struct fsdpck_source *src, size_t ordinal, fsdpck_input_fn visit, void *ctx, struct fsdpck_error *err)
{
    const struct view *v = src->impl;
    int rc = 0;
    for (size_t i = 0; i < v->n && !rc; i++)
        rc = visit(ctx, v->sources[i], averaged_at(v, ordinal)->ordinals[i], err);
    return rc;
}

static void end(void *state)
{
    struct average_state *s = state;
    for (size_t i = s && s->fetch ? s->n : 0; i > 0; i--)
        fsdpck_fetch_free(&s->fetch[i - 1]);
    if (s) {
        free(s->fetch);
        free(s->in);
        free(s->sums);
    }
    free(s);
}

static int begin(struct fsdpck_source *src, void **state, struct fsdpck_error *err)
{
    const struct view *v = src->impl;
    struct average_state *s = calloc(1, sizeof *s);
    if (!s)
        return fsdpck_error_nomem(err, sizeof *s);
    s->fetch = calloc(v->n, sizeof *s->fetch);
    s->in = fsdpck_buffer_new(PIECE_NBYTES);
    s->sums = fsdpck_buffer_new(2 * PIECE_NBYTES); /* two bytes an element become four */
    int rc = s->fetch && s->in && s->sums ? 0 : fsdpck_error_nomem(err, 3 * PIECE_NBYTES);
    if (!rc && (rc = fsdpck_fetch_init(&s->fetch[0], v->sources[0], err)) == 0)
        s->n = 1;
    for (; s->n && s->n < v->n; s->n++) /* one is read at a time */
        fsdpck_fetch_init_shared(&s->fetch[s->n], v->sources[s->n], &s->fetch[0]);
    if (rc)
        end(s);
    else
        *state = s;
    return rc;
}

static int compute(struct fsdpck_fetch *f, void *state, size_t ordinal, const struct fsdpck_matrix_box *box, void *dst,
                   uint64_t stride, struct fsdpck_error *err)
{
    const struct fsdpck_tensor *t = &source_tensors(f->src)[ordinal];
    const uint64_t cols = t->ndim ? t->shape[t->ndim - 1] : 1, item = fsdpck_dtype_info(t->dtype)->nbytes;
    if (box->ncols == cols && (stride == cols * item || box->nrows == 1))
        return compute_range(f, state, ordinal, box->row * cols, box->nrows * cols, dst, err);
    int rc = 0;
    for (uint64_t i = 0; i < box->nrows && !rc; i++)
        rc = compute_range(f, state, ordinal, (box->row + i) * cols + box->col, box->ncols,
                           f->dry ? NULL : (uint8_t *)dst + i * stride, err);
    return rc;
}

/* The records of the first source are those of this one. */
static int finish_reads(struct fsdpck_source *src, uint64_t *read_nbytes, struct fsdpck_error *err)
{
    const struct view *v = src->impl;
    int rc = fsdpck_view_finish(src, read_nbytes, err);
    for (size_t i = 1; i < v->n && !rc; i++)
        rc = fsdpck_checks_finish(v->sources[i], read_nbytes, err);
    return rc;
}

static const struct fsdpck_values values = { .has = has,
                                             .inputs = inputs,
                                             .begin = begin,
                                             .end = end,
                                             .nbytes = fsdpck_view_state_nbytes,
                                             .compute = compute,
                                             .finish = finish_reads };

/* ---- the other ops ---- */

static int extents(struct fsdpck_source *src, size_t ordinal, const uint64_t *offset, const uint64_t *size,
                   fsdpck_extent_fn visit, void *ctx, struct fsdpck_error *err)
{
    (void)offset;
    (void)size;
    (void)visit;
    (void)ctx;
    return fsdpck_view_no_extents(src, ordinal, "is an average", err);
}

static void free_own(struct view *v)
{
    fsdpck_vec_free(&v->averaged);
    free(v->sources);
    free(v->weights);
}

static void close_view(struct fsdpck_source *src)
{
    free_own(src->impl);
    fsdpck_view_close(src);
}

static const struct fsdpck_source_ops ops = { .extents = extents, .close = close_view, .values = &values };

/* ---- the view ---- */

static void install(struct fsdpck_source *src, struct view *v)
{
    fsdpck_view_install(&v->view, src, &ops);
    v->sources[0] = &v->view.inner;
    v->view.state_nbytes = 3 * PIECE_NBYTES;
    for (size_t i = 0; i < v->n; i++)
        v->view.state_nbytes += i ? fsdpck_fetch_shared_nbytes(v->sources[i]) : fsdpck_fetch_nbytes(v->sources[i]);
}

static int show(struct fsdpck_source *src, const struct view *v, struct fsdpck_error *err)
{
    int rc = 0;
    for (size_t i = 0; i < v->averaged.count && !rc; i++) {
        const struct fsdpck_averaged *x = averaged_at(v, i);
        const struct fsdpck_tensor *t = &source_tensors(&v->view.inner)[x->ordinals[0]];
        if (x->alias_of >= 0)
            rc = fsdpck_source_add_alias(src, src->path, x->name, NULL, 0, (size_t)x->alias_of, err);
        else if (!fsdpck_source_add_tensor(src, src->path, x->name, NULL, 0,
                                           v->cast && fsdpck_average_sums(t->dtype) ? v->dtype : t->dtype, t->ndim,
                                           t->shape, err))
            rc = err->code;
    }
    return rc;
}

static int make(const struct fsdpck_averaging *a, struct view *v, struct fsdpck_average_left *left,
                struct fsdpck_error *err)
{
    v->n = a->n;
    v->cast = a->select->cast;
    v->dtype = a->select->dtype;
    v->divisor = a->weights ? 1 : (double)a->n;
    v->averaged = (struct fsdpck_vec)FSDPCK_VEC(struct fsdpck_averaged);
    v->sources = malloc(a->n * sizeof(struct fsdpck_source *));
    v->weights = a->weights ? malloc(a->n * sizeof *v->weights) : NULL;
    if (!v->sources || (a->weights && !v->weights))
        return fsdpck_error_nomem(err, a->n * sizeof(struct fsdpck_source *));
    memcpy(v->sources, a->sources, a->n * sizeof(struct fsdpck_source *));
    if (v->weights)
        memcpy(v->weights, a->weights, a->n * sizeof *v->weights);
    return fsdpck_average_match(a, &a->sources[0]->arena, &v->averaged, left, err);
}

int fsdpck_source_average(const struct fsdpck_averaging *a, struct fsdpck_average_left *left, struct fsdpck_error *err)
{
    struct view *v = calloc(1, sizeof *v);
    int rc = v ? make(a, v, left, err) : fsdpck_error_nomem(err, sizeof *v);
    if (rc) {
        if (v)
            free_own(v);
        free(v);
        return rc;
    }
    install(a->sources[0], v);
    return show(a->sources[0], v, err);
}
