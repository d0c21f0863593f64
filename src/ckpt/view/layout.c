/* SPDX-License-Identifier: Apache-2.0 */
/* Moves extents from the tensors of one source to their places in the tensors of a view. Knows no names. */
#include "view/layout.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "engine/fetch.h"
#include "engine/value_inputs.h"
#include "engine/view.h"
#include "tensor/box.h"

struct layout_tensor {
    struct fsdpck_layout_piece *pieces; /* (npieces) in the source's arena */
    size_t npieces;                     /* 0: the inner tensor as it is */
    size_t inner;
    bool computed;                 /* from an inner tensor that is */
    struct fsdpck_extent *extents; /* (nextents) made on first use, under the lock */
    size_t nextents;
    bool made;
};

struct fsdpck_layout {
    struct fsdpck_view view;
    struct fsdpck_source *src; /* what is being built */
    struct fsdpck_vec tensors; /* struct layout_tensor, parallel to the source's tensors */
    size_t *outer;             /* (inner tensors) ordinal of the tensor that shows it as it is, or SIZE_MAX */
    pthread_mutex_t lock;
    struct fsdpck_arena arena; /* of extents; under the lock */
};

/* ---- moving extents ---- */

struct moving { /* the extents of one tensor */
    struct fsdpck_layout *l;
    const struct fsdpck_layout_piece *piece;
    const struct fsdpck_tensor *t, *inner;
    uint64_t inner_size[FSDPCK_MAX_DIMS]; /* of the piece's box in the inner tensor */
    struct fsdpck_vec list;               /* struct fsdpck_extent */
};

static void inner_strides(const struct fsdpck_extent *e, uint32_t ndim, uint64_t *strides)
{
    uint64_t dense = 1;
    for (uint32_t k = ndim; k-- > 0; dense *= e->size[k])
        strides[k] = e->strides ? e->strides[k] : dense;
}

static int move_extent(void *ctx, const struct fsdpck_extent *e, struct fsdpck_error *err)
{
    struct moving *m = ctx;
    const struct fsdpck_layout_piece *p = m->piece;
    const uint32_t ndim = m->t->ndim, ninner = m->inner->ndim;
    uint64_t o[FSDPCK_MAX_DIMS], s[FSDPCK_MAX_DIMS], strides[FSDPCK_MAX_DIMS];
    if (!fsdpck_box_intersect(ninner, e->offset, e->size, p->from, m->inner_size, o, s))
        return 0;
    uint64_t *box = fsdpck_arena_array(&m->l->arena, 3 * (size_t)ndim, sizeof *box, err);
    struct fsdpck_extent *out = box ? fsdpck_vec_push(&m->list, err) : NULL;
    if (!out)
        return FSDPCK_ERR_NOMEM;
    uint64_t *offset = box, *size = box + ndim, *moved = box + 2 * (size_t)ndim, first = e->first;
    inner_strides(e, ninner, strides);
    for (uint32_t k = 0; k < ninner; k++)
        first += (o[k] - e->offset[k]) * strides[k];
    for (uint32_t d = 0; d < ndim; d++) {
        const uint32_t k = p->dims[d];
        const bool runs = k != FSDPCK_LAYOUT_NO_DIM;
        offset[d] = p->offset[d] + (runs ? o[k] - p->from[k] : 0);
        size[d] = runs ? s[k] : 1;
        moved[d] = runs ? strides[k] : 0;
    }
    *out = *e;
    out->offset = offset;
    out->size = size;
    out->strides = moved;
    out->first = first;
    return 0;
}

/* t: what the view lists x as. */
static int make_extents(struct fsdpck_layout *l, const struct fsdpck_tensor *t, struct layout_tensor *x,
                        struct fsdpck_error *err)
{
    struct moving m = { .l = l, .t = t, .list = FSDPCK_VEC(struct fsdpck_extent) };
    int rc = 0;
    for (size_t i = 0; i < x->npieces && !rc; i++) {
        m.piece = &x->pieces[i];
        m.inner = &source_tensors(&l->view.inner)[m.piece->inner];
        for (uint32_t k = 0; k < m.inner->ndim; k++)
            m.inner_size[k] = 1;
        for (uint32_t d = 0; d < m.t->ndim; d++)
            if (m.piece->dims[d] != FSDPCK_LAYOUT_NO_DIM)
                m.inner_size[m.piece->dims[d]] = m.piece->size[d];
        rc = l->view.inner.ops->extents(&l->view.inner, m.piece->inner, m.piece->from, m.inner_size, move_extent, &m,
                                        err);
    }
    if (!rc && m.list.count && !(x->extents = fsdpck_arena_array(&l->arena, m.list.count, sizeof *x->extents, err)))
        rc = FSDPCK_ERR_NOMEM;
    if (!rc && m.list.count)
        memcpy(x->extents, m.list.data, m.list.count * sizeof *x->extents);
    x->nextents = m.list.count;
    x->made = !rc;
    fsdpck_vec_free(&m.list);
    return rc;
}

/* ---- the source that presents the view ---- */

static int extents(struct fsdpck_source *src, size_t ordinal, const uint64_t *offset, const uint64_t *size,
                   fsdpck_extent_fn visit, void *ctx, struct fsdpck_error *err)
{
    struct fsdpck_layout *l = src->impl;
    struct layout_tensor *x = (struct layout_tensor *)l->tensors.data + ordinal;
    /* Not of l->src: once another view stands on this one, that one lists the other view's tensors. */
    const struct fsdpck_tensor *t = &source_tensors(src)[ordinal];
    uint64_t o[FSDPCK_MAX_DIMS], s[FSDPCK_MAX_DIMS];
    if (x->computed)
        return fsdpck_view_no_extents(src, ordinal, "is computed", err);
    if (!x->npieces)
        return l->view.inner.ops->extents(&l->view.inner, x->inner, offset, size, visit, ctx, err);
    pthread_mutex_lock(&l->lock);
    int rc = x->made ? 0 : make_extents(l, t, x, err);
    pthread_mutex_unlock(&l->lock);
    for (size_t i = 0; i < x->nextents && !rc; i++)
        if (fsdpck_box_intersect(t->ndim, x->extents[i].offset, x->extents[i].size, offset, size, o, s))
            rc = visit(ctx, &x->extents[i], err);
    return rc;
}

/* ---- computed tensors ---- */

static const struct layout_tensor *tensor_at(const struct fsdpck_source *src, size_t ordinal)
{
    const struct fsdpck_layout *l = src->impl;
    return (const struct layout_tensor *)l->tensors.data + ordinal;
}

static bool has(const struct fsdpck_source *src, size_t ordinal)
{
    return tensor_at(src, ordinal)->computed;
}

static int inputs(struct fsdpck_source *src, size_t ordinal, fsdpck_input_fn visit, void *ctx, struct fsdpck_error *err)
{
    struct fsdpck_layout *l = src->impl;
    const struct layout_tensor *x = tensor_at(src, ordinal);
    int rc = x->npieces ? 0 : visit(ctx, &l->view.inner, x->inner, err);
    for (size_t i = 0; i < x->npieces && !rc; i++)
        rc = visit(ctx, &l->view.inner, x->pieces[i].inner, err);
    return rc;
}

static int begin(struct fsdpck_source *src, void **state, struct fsdpck_error *err)
{
    struct fsdpck_layout *l = src->impl;
    struct fsdpck_fetch *inner = malloc(sizeof *inner);
    if (!inner)
        return fsdpck_error_nomem(err, sizeof *inner);
    int rc = fsdpck_fetch_init(inner, &l->view.inner, err);
    if (rc)
        free(inner);
    else
        *state = inner;
    return rc;
}

static void end(void *state)
{
    if (state)
        fsdpck_fetch_free(state);
    free(state);
}

struct computing { /* a box of a tensor, as a box of its matrix */
    struct fsdpck_fetch *f, *inner;
    const struct fsdpck_tensor *t;
    uint64_t offset[FSDPCK_MAX_DIMS], size[FSDPCK_MAX_DIMS]; /* in the tensor; all but the last two sizes are 1 */
    uint8_t *dst;                                            /* NULL in a plan */
    uint64_t stride;
};

/* Computes what a piece holds of the box. */
static int compute_piece(const struct computing *c, const struct fsdpck_layout_piece *p, struct fsdpck_error *err)
{
    const uint32_t n = c->t->ndim, ninner = source_tensors(c->inner->src)[p->inner].ndim;
    const uint64_t item = fsdpck_dtype_info(c->t->dtype)->nbytes;
    uint64_t o[FSDPCK_MAX_DIMS], s[FSDPCK_MAX_DIMS], offset[FSDPCK_MAX_DIMS], size[FSDPCK_MAX_DIMS];
    int64_t strides[FSDPCK_MAX_DIMS];
    uint8_t *dst = c->dst;
    if (!fsdpck_box_intersect(n, p->offset, p->size, c->offset, c->size, o, s))
        return 0;
    for (uint32_t k = 0; k < ninner; k++) {
        offset[k] = p->from[k];
        size[k] = 1;
        strides[k] = (int64_t)item;
    }
    for (uint32_t d = 0; d < n; d++) {
        const uint64_t step = d + 1 == n ? item : d + 2 == n ? c->stride : 0;
        const uint32_t k = p->dims[d];
        if (dst)
            dst += (o[d] - c->offset[d]) * step;
        if (k == FSDPCK_LAYOUT_NO_DIM)
            continue;
        offset[k] += o[d] - p->offset[d];
        size[k] = s[d];
        strides[k] = (int64_t)step;
    }
    return fsdpck_values_input_box(c->f, c->inner, p->inner, offset, size, dst, strides, err);
}

/* Places the box that begins at a row of the matrix and has up to `most` rows; returns how many. */
static uint64_t place_rows(struct computing *c, uint64_t row, uint64_t most)
{
    const uint32_t n = c->t->ndim;
    uint64_t nrows = 1;
    if (n >= 2) {
        const uint64_t rest = c->t->shape[n - 2] - row % c->t->shape[n - 2];
        nrows = most < rest ? most : rest;
    }
    for (uint32_t d = n - (n > 0); d-- > 0; row /= c->t->shape[d]) {
        c->offset[d] = row % c->t->shape[d];
        c->size[d] = d + 2 == n ? nrows : 1;
    }
    return nrows;
}

static int compute(struct fsdpck_fetch *f, void *state, size_t ordinal, const struct fsdpck_matrix_box *box, void *dst,
                   uint64_t stride, struct fsdpck_error *err)
{
    const struct layout_tensor *x = tensor_at(f->src, ordinal);
    struct computing c = {
        .f = f, .inner = state, .t = &source_tensors(f->src)[ordinal], .dst = dst, .stride = stride
    };
    if (!x->npieces)
        return fsdpck_values_pass(f, state, x->inner, box, dst, stride, err);
    if (c.t->ndim) {
        c.offset[c.t->ndim - 1] = box->col;
        c.size[c.t->ndim - 1] = box->ncols;
    }
    int rc = 0;
    for (uint64_t at = 0, nrows; at < box->nrows && !rc; at += nrows) {
        nrows = place_rows(&c, box->row + at, box->nrows - at);
        for (size_t i = 0; i < x->npieces && !rc; i++)
            rc = compute_piece(&c, &x->pieces[i], err);
        c.dst = c.dst ? c.dst + nrows * stride : NULL;
    }
    return rc;
}

static const struct fsdpck_values values = { .has = has,
                                             .inputs = inputs,
                                             .begin = begin,
                                             .end = end,
                                             .nbytes = fsdpck_view_state_nbytes,
                                             .compute = compute,
                                             .finish = fsdpck_view_finish };

/* ---- building ---- */

static void close_view(struct fsdpck_source *src)
{
    struct fsdpck_layout *l = src->impl;
    fsdpck_vec_free(&l->tensors);
    fsdpck_arena_free(&l->arena);
    pthread_mutex_destroy(&l->lock);
    free(l->outer);
    fsdpck_view_close(src);
}

int fsdpck_layout_begin(struct fsdpck_source *src, struct fsdpck_layout **out, struct fsdpck_error *err)
{
    const struct fsdpck_source_ops ops = { .extents = extents,
                                           .close = close_view,
                                           .values = src->ops->values ? &values : NULL };
    struct fsdpck_layout *l = calloc(1, sizeof *l);
    size_t n = src->tensors.count;
    if (!l || !(l->outer = malloc((n + 1) * sizeof *l->outer))) {
        free(l);
        return fsdpck_error_nomem(err, n * sizeof *l->outer);
    }
    for (size_t i = 0; i < n; i++)
        l->outer[i] = SIZE_MAX;
    pthread_mutex_init(&l->lock, NULL);
    l->src = src;
    l->tensors = (struct fsdpck_vec)FSDPCK_VEC(struct layout_tensor);
    fsdpck_view_install(&l->view, src, &ops);
    l->view.state_nbytes = fsdpck_fetch_nbytes(&l->view.inner);
    *out = l;
    return 0;
}

struct fsdpck_source *fsdpck_layout_inner(struct fsdpck_layout *l)
{
    return &l->view.inner;
}

static struct layout_tensor *push(struct fsdpck_layout *l, size_t inner, struct fsdpck_error *err)
{
    struct layout_tensor *x = fsdpck_vec_push(&l->tensors, err);
    if (x) {
        x->inner = inner;
        x->computed = fsdpck_is_computed(&l->view.inner, inner);
    }
    return x;
}

int fsdpck_layout_pass(struct fsdpck_layout *l, size_t inner, const char *name, struct fsdpck_error *err)
{
    const struct fsdpck_tensor *t = &source_tensors(&l->view.inner)[inner];
    const size_t target = t->alias_of >= 0 ? l->outer[t->alias_of] : SIZE_MAX;
    if (!push(l, t->alias_of >= 0 ? (size_t)t->alias_of : inner, err))
        return FSDPCK_ERR_NOMEM;
    if (target != SIZE_MAX)
        return fsdpck_source_add_alias(l->src, l->src->path, name ? name : t->name, name ? NULL : t->path,
                                       name ? 0 : t->npath, target, err);
    l->outer[t->alias_of >= 0 ? (size_t)t->alias_of : inner] = l->src->tensors.count;
    return fsdpck_view_show(l->src, t, name, err);
}

/* Copies n numbers, or NULL. */
static const void *copy(struct fsdpck_layout *l, const void *from, uint32_t n, size_t nbytes, struct fsdpck_error *err)
{
    void *to = fsdpck_arena_array(&l->src->arena, n, nbytes, err);
    if (to && n)
        memcpy(to, from, n * nbytes);
    return to;
}

/* The columns of a turned matrix are read from rows of the file. Rows of up to 32 KiB are read whole, and parts of
 * longer ones alone (engine/fetch.c). */
static uint64_t turned_nbytes(enum fsdpck_dtype dtype, uint32_t ndim, const uint64_t *shape,
                              const struct fsdpck_layout_piece *p)
{
    const uint64_t item = fsdpck_dtype_info(dtype)->nbytes, apart = FSDPCK_READ_APART_NBYTES / item;
    uint64_t nbytes;
    if (ndim < 2 || p->dims[ndim - 1] == FSDPCK_LAYOUT_NO_DIM || p->dims[ndim - 2] == FSDPCK_LAYOUT_NO_DIM ||
        p->dims[ndim - 2] < p->dims[ndim - 1])
        return 0;
    const uint64_t nrows = shape[ndim - 2] <= 2 * apart ? shape[ndim - 2] : apart;
    return checked_mul(nrows, shape[ndim - 1], &nbytes) && checked_mul(nbytes, item, &nbytes) ? nbytes : 0;
}

int fsdpck_layout_add(struct fsdpck_layout *l, const char *name, enum fsdpck_dtype dtype, uint32_t ndim,
                      const uint64_t *shape, const struct fsdpck_layout_piece *pieces, size_t npieces,
                      struct fsdpck_error *err)
{
    struct layout_tensor *x = push(l, pieces[0].inner, err);
    if (!x || !(x->pieces = fsdpck_arena_array(&l->src->arena, npieces, sizeof *x->pieces, err)))
        return FSDPCK_ERR_NOMEM;
    x->npieces = npieces;
    for (size_t i = 0; i < npieces; i++) {
        const struct fsdpck_layout_piece *p = &pieces[i];
        const uint32_t ninner = source_tensors(&l->view.inner)[p->inner].ndim;
        x->computed |= fsdpck_is_computed(&l->view.inner, p->inner);
        x->pieces[i] = (struct fsdpck_layout_piece){ .inner = p->inner,
                                                     .offset = copy(l, p->offset, ndim, sizeof *p->offset, err),
                                                     .size = copy(l, p->size, ndim, sizeof *p->size, err),
                                                     .from = copy(l, p->from, ninner, sizeof *p->from, err),
                                                     .dims = copy(l, p->dims, ndim, sizeof *p->dims, err) };
        if (!x->pieces[i].offset || !x->pieces[i].size || !x->pieces[i].from || !x->pieces[i].dims)
            return FSDPCK_ERR_NOMEM;
    }
    const uint64_t turned = x->computed ? 0 : turned_nbytes(dtype, ndim, shape, pieces);
    if (turned > l->src->turned_nbytes)
        l->src->turned_nbytes = turned;
    return fsdpck_source_add_tensor(l->src, l->src->path, name, NULL, 0, dtype, ndim, shape, err) ? 0 : err->code;
}

int fsdpck_layout_alias(struct fsdpck_layout *l, size_t target, const char *name, struct fsdpck_error *err)
{
    const struct layout_tensor *of = (const struct layout_tensor *)l->tensors.data + target;
    const size_t inner = of->npieces ? of->pieces[0].inner : of->inner;
    return push(l, inner, err) ? fsdpck_source_add_alias(l->src, l->src->path, name, NULL, 0, target, err)
                               : FSDPCK_ERR_NOMEM;
}
