/* SPDX-License-Identifier: Apache-2.0 */
/* Reads elements of one tensor from files into memory. A run that is contiguous in its chunk is read in windows that
 * end at hash blocks. Any other box is halved along its widest dimension until it is a run, or so dense that reading
 * its gaps too is cheaper. Knows nothing of plans, threads or sinks. */
#include "engine/fetch.h"

#include <string.h>

#include "engine/payload.h"
#include "engine/values.h"
#include "tensor/box.h"

#define READ_THROUGH_NBYTES (128u << 10) /* a gap up to this size is read: another request would cost more */

static void swap_bytes(enum fsdpck_dtype dtype, uint8_t *data, uint64_t nbytes)
{
    uint32_t unit = fsdpck_dtype_info(dtype)->swap;
    for (uint64_t i = 0; unit > 1 && i + unit <= nbytes; i += unit)
        for (uint32_t k = 0; k < unit / 2; k++) {
            uint8_t b = data[i + k];
            data[i + k] = data[i + unit - 1 - k];
            data[i + unit - 1 - k] = b;
        }
}

/* ---- runs: elements that are contiguous in a dense chunk ---- */

struct run_target { /* destination of run elements [first, first + nelem) */
    uint8_t *dense; /* address of a contiguous target; NULL: call copy() */
    void (*copy)(void *ctx, const uint8_t *data, uint64_t first, uint64_t nelem);
    void *ctx;
};

/* Fetches one window: payload bytes [begin, end), which hold the run's elements from `first` on. */
static int fetch_window(struct fsdpck_fetch *f, size_t ordinal, const struct fsdpck_extent *e, uint64_t begin,
                        uint64_t end, uint64_t first, const struct run_target *to, struct fsdpck_error *err)
{
    const enum fsdpck_dtype dtype = source_tensors(f->src)[ordinal].dtype;
    uint64_t item = fsdpck_dtype_info(dtype)->nbytes;
    uint8_t *dst = to->dense ? to->dense + first * item : NULL, *data = dst;
    bool done = false;
    int rc = dst ? fsdpck_payload_read_straight(f, ordinal, e, begin, end, dst, &done, err) : 0;
    if (!rc && !done)
        rc = fsdpck_payload_read(f, ordinal, e, begin, end, &data, err);
    if (rc || f->dry)
        return rc;
    if (e->swap)
        swap_bytes(dtype, data, end - begin);
    if (!dst)
        to->copy(to->ctx, data, first, (end - begin) / item);
    else if (!done)
        memcpy(dst, data, end - begin);
    return 0;
}

/* Fetches elements [begin, begin + nelem) in the chunk's own order, in windows that end at hash blocks. */
static int fetch_run(struct fsdpck_fetch *f, size_t ordinal, const struct fsdpck_extent *e, uint64_t begin,
                     uint64_t nelem, const struct run_target *to, struct fsdpck_error *err)
{
    uint64_t item = fsdpck_dtype_info(source_tensors(f->src)[ordinal].dtype)->nbytes, at = begin * item,
             end = at + nelem * item;
    int rc = 0;
    f->needed_nbytes += end - at;
    f->nruns++;
    while (!rc && at < end) {
        uint64_t stop = (at / FSDPCK_BLOCK_NBYTES * FSDPCK_BLOCK_NBYTES) +
                        (to->dense ? FSDPCK_FETCH_WINDOW_NBYTES : fsdpck_payload_window(e));
        stop = stop < end ? stop : end;
        rc = fetch_window(f, ordinal, e, at, stop, at / item - begin, to, err);
        at = stop;
    }
    return rc;
}

/* ---- boxes ---- */

/* Computes the strides of the chunk's elements in its payload, in elements. */
static void chunk_strides(const struct fsdpck_extent *e, uint32_t ndim, uint64_t *strides)
{
    uint64_t dense = 1;
    for (uint32_t d = ndim; d-- > 0; dense *= e->size[d])
        strides[d] = e->strides ? e->strides[d] : dense;
}

struct extent_copy { /* a copy from an extent to a target */
    struct fsdpck_fetch *f;
    const struct fsdpck_extent *e;
    const struct fsdpck_fetch_target *to;
    uint32_t ndim;
    uint64_t item;
    uint64_t strides[FSDPCK_MAX_DIMS]; /* in the payload, elements */
    const uint64_t *offset, *size;     /* box of a run, for place_box */
    uint64_t skip;                     /* elements of that box before the run */
};

static uint8_t *dst_address(const struct extent_copy *p, const uint64_t *offset)
{
    uint8_t *dst = p->to->dst;
    for (uint32_t d = 0; d < p->ndim; d++)
        dst += (int64_t)(offset[d] - p->to->offset[d]) * p->to->strides[d];
    return dst;
}

/* Returns the first payload element of a box. */
static uint64_t first_of(const struct extent_copy *p, const uint64_t *offset)
{
    uint64_t first = p->e->first;
    for (uint32_t d = 0; d < p->ndim; d++)
        first += (offset[d] - p->e->offset[d]) * p->strides[d];
    return first;
}

static uint64_t span_of(const struct extent_copy *p, const uint64_t *size)
{
    uint64_t span = 1;
    for (uint32_t d = 0; d < p->ndim; d++)
        span += (size[d] - 1) * p->strides[d];
    return span;
}

/* Reads the whole box in one read. */
static int read_box(struct extent_copy *p, const uint64_t *o, const uint64_t *s, struct fsdpck_error *err)
{
    int64_t from[FSDPCK_MAX_DIMS];
    uint8_t *data = NULL;
    uint64_t begin = first_of(p, o) * p->item, nbytes = span_of(p, s) * p->item;
    p->f->needed_nbytes += fsdpck_box_nelem(s, p->ndim) * p->item;
    p->f->nruns++;
    int rc = fsdpck_payload_read(p->f, p->to->ordinal, p->e, begin, begin + nbytes, &data, err);
    if (rc || p->f->dry)
        return rc;
    if (p->e->swap)
        swap_bytes(source_tensors(p->f->src)[p->to->ordinal].dtype, data, nbytes);
    for (uint32_t d = 0; d < p->ndim; d++)
        from[d] = (int64_t)(p->strides[d] * p->item);
    fsdpck_copy_strided(p->ndim, s, p->item, dst_address(p, o), p->to->strides, data, from);
    return 0;
}

/* Returns whether the box has a gap in the payload that is worth a separate request. */
static bool has_gap(const struct extent_copy *p, const uint64_t *s)
{
    uint64_t one[FSDPCK_MAX_DIMS];
    for (uint32_t d = 0; d < p->ndim; d++) { /* from one index of d to the next, without the elements between them */
        if (s[d] == 1)
            continue;
        for (uint32_t k = 0; k < p->ndim; k++)
            one[k] = p->strides[k] < p->strides[d] ? s[k] : 1;
        const uint64_t run = span_of(p, one) * p->item, step = p->strides[d] * p->item,
                       gap = step > run ? step - run : 0;
        if (gap > READ_THROUGH_NBYTES || (gap >= run && run >= FSDPCK_READ_APART_NBYTES))
            return true;
    }
    return false;
}

/* Halves a box along its widest dimension until it fits a window and has no gap worth a separate request. Depth at most
 * 64 * log2(size). */
static int read_split(struct extent_copy *p, const uint64_t *o, const uint64_t *s, struct fsdpck_error *err)
{
    if (span_of(p, s) * p->item <= fsdpck_payload_window(p->e) && !has_gap(p, s))
        return read_box(p, o, s, err);
    uint32_t widest = 0;
    for (uint32_t d = 1; d < p->ndim; d++)
        if ((s[d] - 1) * p->strides[d] > (s[widest] - 1) * p->strides[widest])
            widest = d;
    uint64_t o2[FSDPCK_MAX_DIMS], s2[FSDPCK_MAX_DIMS];
    memcpy(o2, o, p->ndim * sizeof *o2);
    memcpy(s2, s, p->ndim * sizeof *s2);
    s2[widest] = s[widest] / 2;
    int rc = read_split(p, o2, s2, err);
    o2[widest] += s2[widest];
    s2[widest] = s[widest] - s2[widest];
    return !rc ? read_split(p, o2, s2, err) : rc;
}

struct placing { /* a window of a run, split into boxes */
    const struct extent_copy *p;
    const uint8_t *data;
};

static int copy_part(void *ctx, const uint64_t *offset, const uint64_t *size)
{
    struct placing *w = ctx;
    const struct extent_copy *p = w->p;
    uint64_t o[FSDPCK_MAX_DIMS];
    int64_t from[FSDPCK_MAX_DIMS];
    for (uint32_t d = 0; d < p->ndim; d++)
        o[d] = p->offset[d] + offset[d];
    fsdpck_dense_strides(p->ndim, size, p->item, from);
    fsdpck_copy_strided(p->ndim, size, p->item, dst_address(p, o), p->to->strides, w->data, from);
    w->data += fsdpck_box_nelem(size, p->ndim) * p->item;
    return 0;
}

static void copy_box(void *ctx, const uint8_t *data, uint64_t first, uint64_t nelem)
{
    struct placing w = { .p = ctx, .data = data };
    first += w.p->skip;
    fsdpck_range_boxes(w.p->ndim, w.p->size, first, first + nelem, copy_part, &w);
}

/* Returns whether the box is contiguous in the target. */
static bool is_dense(const struct extent_copy *p, const uint64_t *s)
{
    int64_t dense[FSDPCK_MAX_DIMS];
    fsdpck_dense_strides(p->ndim, s, p->item, dense);
    for (uint32_t d = 0; d < p->ndim; d++)
        if (s[d] > 1 && p->to->strides[d] != dense[d])
            return false;
    return true;
}

bool fsdpck_fetch_is_run(const struct fsdpck_extent *e, uint32_t ndim, const uint64_t *o, const uint64_t *s,
                         uint64_t *first)
{
    struct extent_copy p = { .e = e, .ndim = ndim };
    uint64_t dense = 1;
    chunk_strides(e, ndim, p.strides);
    *first = first_of(&p, o);
    for (uint32_t d = ndim; d-- > 0; dense *= s[d])
        if (s[d] != 1 && p.strides[d] != dense)
            return false;
    return true;
}

int fsdpck_fetch_box(struct fsdpck_fetch *f, const struct fsdpck_extent *e, const uint64_t *o, const uint64_t *s,
                     uint64_t begin, uint64_t end, const struct fsdpck_fetch_target *to, struct fsdpck_error *err)
{
    const struct fsdpck_tensor *t = &source_tensors(f->src)[to->ordinal];
    struct extent_copy p = {
        .f = f, .e = e, .to = to, .ndim = t->ndim, .item = fsdpck_dtype_info(t->dtype)->nbytes, .offset = o, .size = s
    };
    uint64_t first;
    chunk_strides(e, t->ndim, p.strides);
    if (!fsdpck_fetch_is_run(e, t->ndim, o, s, &first))
        return read_split(&p, o, s, err);
    struct run_target run = { .copy = copy_box, .ctx = &p };
    if (!f->dry && is_dense(&p, s))
        run.dense = dst_address(&p, o) + begin * p.item;
    p.skip = begin;
    return fetch_run(f, to->ordinal, e, first + begin, end - begin, &run, err);
}

/* ---- flat ranges ---- */

struct range {
    struct fsdpck_fetch *f;
    const struct fsdpck_tensor *t;
    size_t ordinal;
    uint64_t begin, end, item;
    uint8_t *dst;
    uint64_t covered; /* elements read so far */
    const struct fsdpck_extent *e;
    struct fsdpck_error *err;
};

/* Handles a box of the range in an extent that is not one run of the tensor (columns, transposed items). */
static int range_box(void *ctx, const uint64_t *offset, const uint64_t *size)
{
    struct range *g = ctx;
    uint64_t o[FSDPCK_MAX_DIMS], s[FSDPCK_MAX_DIMS];
    int64_t strides[FSDPCK_MAX_DIMS];
    if (!fsdpck_box_intersect(g->t->ndim, offset, size, g->e->offset, g->e->size, o, s))
        return 0;
    fsdpck_dense_strides(g->t->ndim, g->t->shape, g->item, strides);
    uint64_t flat = 0;
    for (uint32_t d = 0; d < g->t->ndim; d++)
        flat = flat * g->t->shape[d] + o[d];
    struct fsdpck_fetch_target to = {
        .ordinal = g->ordinal, .offset = o, .strides = strides, .dst = g->dst + (flat - g->begin) * g->item
    };
    g->covered += fsdpck_box_nelem(s, g->t->ndim);
    return fsdpck_fetch_box(g->f, g->e, o, s, 0, fsdpck_box_nelem(s, g->t->ndim), &to, g->err);
}

static int range_extent(void *ctx, const struct fsdpck_extent *e, struct fsdpck_error *err)
{
    struct range *g = ctx;
    uint64_t first, last, at;
    fsdpck_box_span(g->t->ndim, g->t->shape, e->offset, e->size, &first, &last);
    if (last - first != fsdpck_box_nelem(e->size, g->t->ndim) ||
        !fsdpck_fetch_is_run(e, g->t->ndim, e->offset, e->size, &at)) {
        g->e = e;
        g->err = err;
        return fsdpck_range_boxes(g->t->ndim, g->t->shape, g->begin, g->end, range_box, g);
    }
    uint64_t a = first > g->begin ? first : g->begin, b = last < g->end ? last : g->end;
    if (a >= b)
        return 0;
    const struct run_target run = { .dense = g->dst + (a - g->begin) * g->item };
    g->covered += b - a;
    return fetch_run(g->f, g->ordinal, e, at + a - first, b - a, &run, err);
}

int fsdpck_fetch_range(struct fsdpck_fetch *f, size_t ordinal, uint64_t begin, uint64_t end, void *dst,
                       struct fsdpck_error *err)
{
    const struct fsdpck_tensor *t = &source_tensors(f->src)[ordinal];
    struct range g = { .f = f, .t = t, .ordinal = ordinal, .begin = begin, .end = end, .dst = dst };
    uint64_t offset[FSDPCK_MAX_DIMS] = { 0 }, size[FSDPCK_MAX_DIMS];
    if (begin == end)
        return 0;
    if (fsdpck_is_computed(f->src, ordinal))
        return fsdpck_values_range(f, ordinal, begin, end, dst, err);
    g.item = fsdpck_dtype_info(t->dtype)->nbytes;
    if (t->ndim) { /* the rows that the range intersects */
        uint64_t row = t->nelem / t->shape[0];
        memcpy(size, t->shape, t->ndim * sizeof *size);
        offset[0] = begin / row;
        size[0] = (end + row - 1) / row - offset[0];
    }
    int rc = f->src->ops->extents(f->src, ordinal, offset, size, range_extent, &g, err);
    if (rc || g.covered == end - begin)
        return rc;
    fsdpck_error_set(err, FSDPCK_ERR_MISSING, f->src->path,
                     "the stored chunks hold %llu of the %llu elements from %llu on", (unsigned long long)g.covered,
                     (unsigned long long)(end - begin), (unsigned long long)begin);
    fsdpck_error_tensor(err, t->name);
    return FSDPCK_ERR_MISSING;
}
