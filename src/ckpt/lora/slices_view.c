/* SPDX-License-Identifier: Apache-2.0 */
/* A value view that gathers. Of tensors whose matrices are interleaved, two are kept for all threads, as A and B of an
 * expert are asked for in turn. */
#include "lora/slices_view.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "engine/value_inputs.h"
#include "engine/view.h"

enum { NKEPT = 2 };

struct kept {
    size_t inner;
    uint8_t *data; /* NULL: none */
};

struct view {
    struct fsdpck_view view;
    size_t *passed; /* (npassed) ordinals of the inner tensors that come first in the catalogue */
    size_t npassed;
    struct fsdpck_lora_slice *slices; /* the tensors behind them */
    pthread_mutex_t lock;             /* of the rest */
    struct kept kept[NKEPT];
    int last; /* of these, the one that was asked for last */
};

struct state {
    struct fsdpck_fetch fetch;
};

static const struct fsdpck_tensor *inner_tensor(const struct view *v, size_t inner)
{
    return &source_tensors(&v->view.inner)[inner];
}

static bool has(const struct fsdpck_source *src, size_t ordinal)
{
    const struct view *v = src->impl;
    return ordinal >= v->npassed || fsdpck_is_computed(&v->view.inner, v->passed[ordinal]);
}

static int extents(struct fsdpck_source *src, size_t ordinal, const uint64_t *offset, const uint64_t *size,
                   fsdpck_extent_fn visit, void *ctx, struct fsdpck_error *err)
{
    struct view *v = src->impl;
    if (has(src, ordinal))
        return fsdpck_view_no_extents(src, ordinal, "is cut out of a larger tensor", err);
    return v->view.inner.ops->extents(&v->view.inner, v->passed[ordinal], offset, size, visit, ctx, err);
}

static int inputs(struct fsdpck_source *src, size_t ordinal, fsdpck_input_fn visit, void *ctx, struct fsdpck_error *err)
{
    struct view *v = src->impl;
    return visit(ctx, &v->view.inner, ordinal < v->npassed ? v->passed[ordinal] : v->slices[ordinal - v->npassed].inner,
                 err);
}

static void end(void *state)
{
    struct state *s = state;
    if (s)
        fsdpck_fetch_free(&s->fetch);
    free(s);
}

static int begin(struct fsdpck_source *src, void **state, struct fsdpck_error *err)
{
    struct view *v = src->impl;
    struct state *s = calloc(1, sizeof *s);
    if (!s)
        return fsdpck_error_nomem(err, sizeof *s);
    *state = s;
    return fsdpck_fetch_init(&s->fetch, &v->view.inner, err);
}

/* Reads the whole tensor, unless it is one of those that are kept. Sets v->last. */
static int keep(struct view *v, struct fsdpck_fetch *f, struct state *s, size_t inner, struct fsdpck_error *err)
{
    const struct fsdpck_tensor *t = inner_tensor(v, inner);
    if (f->dry)
        return fsdpck_values_input_range(f, &s->fetch, inner, 0, t->nelem, NULL, err);
    for (int i = 0; i < NKEPT; i++)
        if (v->kept[i].data && v->kept[i].inner == inner) {
            v->last = i;
            return 0;
        }
    v->last = (v->last + 1) % NKEPT;
    struct kept *k = &v->kept[v->last];
    free(k->data);
    *k = (struct kept){ inner, malloc(t->nbytes) };
    int rc = k->data ? fsdpck_values_input_range(f, &s->fetch, inner, 0, t->nelem, k->data, err)
                     : fsdpck_error_nomem(err, t->nbytes);
    if (rc) {
        free(k->data);
        k->data = NULL;
    }
    return rc;
}

static void gather(const struct fsdpck_lora_slice *x, const uint8_t *in, uint64_t item,
                   const struct fsdpck_matrix_box *box, uint8_t *out, uint64_t stride)
{
    for (uint64_t i = 0; i < box->nrows; i++)
        for (uint64_t j = 0; j < box->ncols; j++)
            memcpy(out + i * stride + j * item,
                   in + (x->first + (box->row + i) * x->row_step + (box->col + j) * x->col_step) * item, item);
}

/* Whether the matrix lies in the inner tensor row after row. */
static bool is_dense(const struct fsdpck_lora_slice *x)
{
    return x->col_step == 1 && x->row_step == x->cols;
}

static int read_dense(struct fsdpck_fetch *f, struct state *s, const struct fsdpck_lora_slice *x, uint64_t item,
                      const struct fsdpck_matrix_box *box, uint8_t *out, uint64_t stride, struct fsdpck_error *err)
{
    const uint64_t n = box->ncols == x->cols && stride == x->cols * item ? box->nrows : 1;
    int rc = 0;
    for (uint64_t i = 0; i < box->nrows && !rc; i += n) {
        const uint64_t begin = x->first + (box->row + i) * x->cols + box->col, count = n > 1 ? n * x->cols : box->ncols;
        rc = fsdpck_values_input_range(f, &s->fetch, x->inner, begin, begin + count, f->dry ? NULL : out + i * stride,
                                       err);
    }
    return rc;
}

static int compute(struct fsdpck_fetch *f, void *state, size_t ordinal, const struct fsdpck_matrix_box *box, void *dst,
                   uint64_t stride, struct fsdpck_error *err)
{
    struct view *v = f->src->impl;
    struct state *s = state;
    if (ordinal < v->npassed)
        return fsdpck_values_pass(f, &s->fetch, v->passed[ordinal], box, dst, stride, err);
    const struct fsdpck_lora_slice *x = &v->slices[ordinal - v->npassed];
    const uint64_t item = fsdpck_dtype_info(inner_tensor(v, x->inner)->dtype)->nbytes;
    if (is_dense(x))
        return read_dense(f, s, x, item, box, dst, stride, err);
    pthread_mutex_lock(&v->lock);
    int rc = keep(v, f, s, x->inner, err);
    if (!rc && !f->dry)
        gather(x, v->kept[v->last].data, item, box, dst, stride);
    pthread_mutex_unlock(&v->lock);
    return rc;
}

static void close_view(struct fsdpck_source *src)
{
    struct view *v = src->impl;
    pthread_mutex_destroy(&v->lock);
    free(v->passed);
    free(v->slices);
    for (int i = 0; i < NKEPT; i++)
        free(v->kept[i].data);
    fsdpck_view_close(src);
}

static const struct fsdpck_values values = { .has = has,
                                             .inputs = inputs,
                                             .begin = begin,
                                             .end = end,
                                             .nbytes = fsdpck_view_state_nbytes,
                                             .compute = compute,
                                             .finish = fsdpck_view_finish };

static const struct fsdpck_source_ops ops = { .extents = extents, .close = close_view, .values = &values };

static int show(struct fsdpck_source *src, struct view *v, const bool *hidden, size_t n, struct fsdpck_error *err)
{
    int rc = 0;
    for (size_t i = 0; i < v->view.inner.tensors.count && !rc; i++) {
        const struct fsdpck_tensor *t = inner_tensor(v, i);
        if (hidden[i])
            continue;
        v->passed[v->npassed++] = t->alias_of >= 0 ? (size_t)t->alias_of : i;
        rc = fsdpck_view_show(src, t, NULL, err);
    }
    for (size_t i = 0; i < n && !rc; i++) {
        const struct fsdpck_lora_slice *x = &v->slices[i];
        const uint64_t shape[] = { x->rows, x->cols };
        if (!fsdpck_source_add_tensor(src, src->path, x->name, x->path, x->npath, inner_tensor(v, x->inner)->dtype, 2,
                                      shape, err))
            rc = err->code;
    }
    return rc;
}

int fsdpck_lora_slices_present(struct fsdpck_source *src, const bool *hidden, struct fsdpck_lora_slice *slices,
                               size_t n, struct fsdpck_error *err)
{
    struct view *v = calloc(1, sizeof *v);
    size_t *passed = malloc((src->tensors.count + 1) * sizeof *passed);
    if (!v || !passed) {
        free(v);
        free(passed);
        free(slices);
        return fsdpck_error_nomem(err, sizeof *v);
    }
    *v = (struct view){ .passed = passed, .slices = slices };
    pthread_mutex_init(&v->lock, NULL);
    fsdpck_view_install(&v->view, src, &ops);
    v->view.state_nbytes = fsdpck_fetch_nbytes(&v->view.inner);
    return show(src, v, hidden, n, err);
}
