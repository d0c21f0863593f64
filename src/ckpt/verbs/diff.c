/* SPDX-License-Identifier: Apache-2.0 */
/* Compares two checkpoints of any kind and sharding: pairs tensors by name, reads them in batches of boxes that fit the
 * memory budget, and compares them in all threads. Knows no format. */
#include <fsdpck/check.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "hf/quantized.h"
#include "tensor/box.h"
#include "verbs/diff_values.h"
#include "base/pool.h"
#include "base/vec.h"
#include "base/stop.h"

enum { BATCH_MAX_BOXES = 1024, COMPARE_NBYTES = 1 << 20 };
#define BATCH_MAX_NBYTES (64ull << 20) /* of one side; larger batches are not faster */
#define BATCH_MIN_NBYTES 4096ull       /* an element has at most 16 bytes */

/* A name on one side or both. */
struct pair {
    const struct fsdpck_tensor *a, *b;
    bool read;
    struct fsdpck_value_diff diff;
};

/* A box of a pair, dense in both buffers. */
struct dense_box {
    size_t pair;
    uint64_t a_at, b_at; /* byte offsets in the buffers */
    uint64_t nelem;
    uint64_t offset[FSDPCK_MAX_DIMS], size[FSDPCK_MAX_DIMS];
};

/* The part of a box that one thread compares at a time. */
struct slice {
    size_t pair;
    const char *a, *b;
    uint64_t nelem;
    struct fsdpck_value_diff diff;
};

struct diff {
    struct fsdpck_source *a, *b;
    double tolerance;
    struct fsdpck_options opt;
    fsdpck_difference_fn report;
    void *report_ctx;
    struct fsdpck_diff_result *result;
    struct fsdpck_error *err;
    struct fsdpck_vec pairs;  /* struct pair, by name */
    struct fsdpck_vec boxes;  /* struct dense_box, of the batch */
    struct fsdpck_vec slices; /* struct slice, of the batch */
    struct fsdpck_vec reads;  /* struct fsdpck_read */
    char *a_buf, *b_buf;
    uint64_t batch_nbytes; /* capacity of each buffer */
    uint64_t a_used, b_used;
    size_t filling;   /* pair that is being split into boxes */
    uint64_t element; /* its first element not yet in a box */
    size_t reported;
    uint64_t done_nbytes, total_nbytes;
};

static struct pair *pair_at(const struct diff *d, size_t i)
{
    return (struct pair *)d->pairs.data + i;
}

/* ---- pairing */

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const struct fsdpck_tensor *const *)a)->name, (*(const struct fsdpck_tensor *const *)b)->name);
}

static const struct fsdpck_tensor **sorted_tensors(const struct fsdpck_source *src, size_t *n, struct fsdpck_error *err)
{
    *n = fsdpck_source_ntensors(src);
    const struct fsdpck_tensor **list = malloc((*n + 1) * sizeof *list);
    if (!list) {
        fsdpck_error_nomem(err, (*n + 1) * sizeof *list);
        return NULL;
    }
    for (size_t i = 0; i < *n; i++)
        list[i] = fsdpck_source_tensor(src, i);
    qsort(list, *n, sizeof *list, by_name);
    return list;
}

static bool same_shape(const struct pair *p)
{
    return p->a->ndim == p->b->ndim &&
           (p->a->ndim == 0 || memcmp(p->a->shape, p->b->shape, p->a->ndim * sizeof *p->a->shape) == 0);
}

/* Codes without their scales are not values, so a tolerance has no meaning for them. */
static int refuse_quantized(struct diff *d, const struct pair *p)
{
    const char *beside_a = fsdpck_quantized_beside(d->a, p->a), *beside_b = fsdpck_quantized_beside(d->b, p->b);
    if (!beside_a && !beside_b)
        return 0;
    fsdpck_error_set(d->err, FSDPCK_ERR_UNSUPPORTED, fsdpck_source_path(beside_a ? d->a : d->b),
                     "is part of a quantized weight (with '%.400s'): values cannot be compared by --tolerance",
                     beside_a ? beside_a : beside_b);
    fsdpck_error_tensor(d->err, p->a->name);
    fsdpck_error_hint(d->err, "without --tolerance, the stored bits are compared; or dequantize both first");
    return FSDPCK_ERR_UNSUPPORTED;
}

/* Decides whether bytes must be read. */
static int compare_pair(struct diff *d, struct pair *p)
{
    if (!p->a || !p->b)
        return 0;
    d->result->ntensors++;
    bool same_dtype = p->a->dtype == p->b->dtype;
    if (!same_shape(p) || (!same_dtype && (d->tolerance < 0 || !fsdpck_dtype_comparable(p->a->dtype, p->b->dtype))))
        return 0;
    if (same_dtype && p->a->has_content && p->b->has_content &&
        memcmp(p->a->content, p->b->content, sizeof p->a->content) == 0) {
        d->result->nskipped++;
        return 0;
    }
    p->read = true;
    d->total_nbytes += p->a->nbytes + p->b->nbytes;
    return d->tolerance >= 0 ? refuse_quantized(d, p) : 0;
}

static int pair_tensors(struct diff *d)
{
    size_t na, nb = 0, i = 0, j = 0;
    const struct fsdpck_tensor **a = sorted_tensors(d->a, &na, d->err), **b = sorted_tensors(d->b, &nb, d->err);
    int rc = !a || !b ? FSDPCK_ERR_NOMEM : 0;
    while (!rc && (i < na || j < nb)) {
        struct pair *p = fsdpck_vec_push(&d->pairs, d->err);
        if (!p) {
            rc = FSDPCK_ERR_NOMEM;
            break;
        }
        int order = i == na ? 1 : j == nb ? -1 : by_name(&a[i], &b[j]);
        p->a = order <= 0 ? a[i++] : NULL;
        p->b = order >= 0 ? b[j++] : NULL;
        rc = compare_pair(d, p);
    }
    free(a);
    free(b);
    return rc;
}

/* ---- filling a batch */

static uint64_t element_nbytes(const struct fsdpck_tensor *t)
{
    return fsdpck_dtype_info(t->dtype)->nbytes;
}

static int add_piece(void *ctx, const uint64_t *offset, const uint64_t *size)
{
    struct diff *d = ctx;
    const struct pair *p = pair_at(d, d->filling);
    struct dense_box *box = fsdpck_vec_push(&d->boxes, d->err);
    if (!box)
        return FSDPCK_ERR_NOMEM;
    box->pair = d->filling;
    box->a_at = d->a_used;
    box->b_at = d->b_used;
    if (p->a->ndim > 0) {
        memcpy(box->offset, offset, p->a->ndim * sizeof *offset);
        memcpy(box->size, size, p->a->ndim * sizeof *size);
    }
    box->nelem = fsdpck_box_nelem(box->size, p->a->ndim);
    d->a_used += box->nelem * element_nbytes(p->a);
    d->b_used += box->nelem * element_nbytes(p->b);
    return 0;
}

/* Returns the number of elements of the pair, from d->element on, for this batch: whole rows if they fit, because they
 * are cheaper to read. */
static uint64_t fitting(const struct diff *d, const struct pair *p)
{
    uint64_t wide = element_nbytes(p->a) > element_nbytes(p->b) ? element_nbytes(p->a) : element_nbytes(p->b);
    uint64_t used = d->a_used > d->b_used ? d->a_used : d->b_used;
    uint64_t room = (d->batch_nbytes - used) / wide, left = p->a->nelem - d->element;
    if (left <= room)
        return left;
    uint64_t row = p->a->ndim > 0 ? p->a->nelem / p->a->shape[0] : 1;
    uint64_t whole = (d->element + room) / row * row;
    if (whole > d->element)
        return whole - d->element;
    return used == 0 ? room : 0; /* split a row that fits no batch; a row that fits one waits for the next batch */
}

static int fill_batch(struct diff *d)
{
    d->a_used = d->b_used = 0;
    d->boxes.count = 0;
    while (d->filling < d->pairs.count && d->boxes.count < BATCH_MAX_BOXES) {
        const struct pair *p = pair_at(d, d->filling);
        uint64_t n = p->read ? fitting(d, p) : 0;
        if (n > 0) {
            int rc = fsdpck_range_boxes(p->a->ndim, p->a->shape, d->element, d->element + n, add_piece, d);
            if (rc)
                return rc;
            d->element += n;
        }
        if (p->read && d->element < p->a->nelem)
            return 0; /* batch full */
        d->filling++;
        d->element = 0;
    }
    return 0;
}

/* ---- reading and comparing a batch */

static int read_side(struct diff *d, bool b_side)
{
    const struct dense_box *boxes = d->boxes.data;
    d->reads.count = 0;
    for (size_t i = 0; i < d->boxes.count; i++) {
        const struct pair *p = pair_at(d, boxes[i].pair);
        struct fsdpck_read *r = fsdpck_vec_push(&d->reads, d->err);
        if (!r)
            return FSDPCK_ERR_NOMEM;
        *r = (struct fsdpck_read){ .tensor = b_side ? p->b : p->a,
                                   .offset = boxes[i].offset,
                                   .size = boxes[i].size,
                                   .dst = b_side ? d->b_buf + boxes[i].b_at : d->a_buf + boxes[i].a_at };
    }
    return fsdpck_source_read(b_side ? d->b : d->a, d->reads.data, d->reads.count, d->err);
}

static int cut_slices(struct diff *d)
{
    const struct dense_box *boxes = d->boxes.data;
    d->slices.count = 0;
    for (size_t i = 0; i < d->boxes.count; i++) {
        const struct pair *p = pair_at(d, boxes[i].pair);
        uint64_t a_nbytes = element_nbytes(p->a), b_nbytes = element_nbytes(p->b), most = COMPARE_NBYTES / a_nbytes;
        for (uint64_t at = 0; at < boxes[i].nelem;) {
            struct slice *s = fsdpck_vec_push(&d->slices, d->err);
            if (!s)
                return FSDPCK_ERR_NOMEM;
            s->pair = boxes[i].pair;
            s->a = d->a_buf + boxes[i].a_at + at * a_nbytes;
            s->b = d->b_buf + boxes[i].b_at + at * b_nbytes;
            s->nelem = boxes[i].nelem - at < most ? boxes[i].nelem - at : most;
            at += s->nelem;
        }
    }
    return 0;
}

static int compare_slice(void *ctx, size_t i, unsigned worker, struct fsdpck_error *err)
{
    struct diff *d = ctx;
    struct slice *s = (struct slice *)d->slices.data + i;
    const struct pair *p = pair_at(d, s->pair);
    (void)worker;
    (void)err;
    fsdpck_values_compare(p->a->dtype, s->a, p->b->dtype, s->b, s->nelem, d->tolerance, &s->diff);
    return 0;
}

static void add_up(struct diff *d)
{
    const struct slice *slices = d->slices.data;
    for (size_t i = 0; i < d->slices.count; i++) {
        struct fsdpck_value_diff *sum = &pair_at(d, slices[i].pair)->diff;
        sum->ndifferent += slices[i].diff.ndifferent;
        sum->max_abs = fmax(sum->max_abs, slices[i].diff.max_abs);
    }
}

static int run_batch(struct diff *d)
{
    int rc = read_side(d, false);
    if (!rc)
        rc = read_side(d, true);
    if (!rc)
        rc = cut_slices(d);
    if (!rc)
        rc = fsdpck_pool_run(d->opt.nthreads, d->slices.count, compare_slice, d, d->opt.stop, d->err);
    if (rc)
        return rc;
    add_up(d);
    d->done_nbytes += d->a_used + d->b_used;
    if (d->opt.progress)
        d->opt.progress(d->opt.ctx, d->done_nbytes, d->total_nbytes);
    return 0;
}

/* ---- reporting */

static void report_pair(struct diff *d, const struct pair *p)
{
    struct fsdpck_difference out = { .tensor = p->a ? p->a->name : p->b->name, .a = p->a, .b = p->b };
    if (p->a && p->b) {
        out.same_dtype = p->a->dtype == p->b->dtype;
        out.same_shape = same_shape(p);
        out.ndifferent = p->diff.ndifferent;
        out.max_abs = p->diff.max_abs;
        if (out.same_dtype && out.same_shape && out.ndifferent == 0)
            return;
    }
    d->result->ndifferent++;
    if (d->report)
        d->report(d->report_ctx, &out);
}

/* ---- the whole comparison */

static uint64_t batch_size(const struct diff *d)
{
    uint64_t n = d->opt.memory_nbytes / 4; /* for two buffers; the rest is for the sources */
    uint64_t most = d->total_nbytes > BATCH_MIN_NBYTES ? d->total_nbytes : BATCH_MIN_NBYTES;
    n = n < BATCH_MAX_NBYTES ? n : BATCH_MAX_NBYTES;
    n = n < most ? n : most;
    return n > BATCH_MIN_NBYTES ? n : BATCH_MIN_NBYTES;
}

static int run(struct diff *d)
{
    int rc = pair_tensors(d);
    if (rc)
        return rc;
    d->batch_nbytes = batch_size(d);
    d->a_buf = malloc(d->batch_nbytes);
    d->b_buf = malloc(d->batch_nbytes);
    if (!d->a_buf || !d->b_buf)
        return fsdpck_error_nomem(d->err, 2 * d->batch_nbytes);
    while (!rc && d->filling < d->pairs.count) {
        if (fsdpck_stop_asked(d->opt.stop))
            return fsdpck_error_set(d->err, FSDPCK_ERR_STOPPED, NULL, "stopped");
        rc = fill_batch(d);
        if (!rc && d->boxes.count > 0)
            rc = run_batch(d);
        for (; !rc && d->reported < d->filling; d->reported++)
            report_pair(d, pair_at(d, d->reported));
    }
    if (!rc)
        rc = fsdpck_source_check(d->a, d->err);
    return !rc ? fsdpck_source_check(d->b, d->err) : rc;
}

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int fsdpck_diff(struct fsdpck_source *a, struct fsdpck_source *b, double tolerance, const struct fsdpck_options *opt,
                fsdpck_difference_fn report, void *report_ctx, struct fsdpck_diff_result *result,
                struct fsdpck_error *err)
{
    double start = seconds_now();
    struct fsdpck_diff_result counts = { 0 };
    struct fsdpck_error own = { 0 };
    struct diff d = { .a = a,
                      .b = b,
                      .tolerance = tolerance,
                      .report = report,
                      .report_ctx = report_ctx,
                      .result = &counts,
                      .err = err ? err : &own,
                      .pairs = FSDPCK_VEC(struct pair),
                      .boxes = FSDPCK_VEC(struct dense_box),
                      .slices = FSDPCK_VEC(struct slice),
                      .reads = FSDPCK_VEC(struct fsdpck_read) };
    if (isnan(tolerance))
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "the tolerance is not a number");
    if (opt)
        d.opt = *opt;
    d.opt.nthreads = d.opt.nthreads != 0 ? d.opt.nthreads : fsdpck_processors();
    d.opt.memory_nbytes = d.opt.memory_nbytes != 0 ? d.opt.memory_nbytes : FSDPCK_DEFAULT_MEMORY;
    int rc = run(&d);
    free(d.a_buf);
    free(d.b_buf);
    fsdpck_vec_free(&d.pairs);
    fsdpck_vec_free(&d.boxes);
    fsdpck_vec_free(&d.slices);
    fsdpck_vec_free(&d.reads);
    counts.seconds = seconds_now() - start;
    if (!rc && result)
        *result = counts;
    return rc;
}
