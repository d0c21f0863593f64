/* SPDX-License-Identifier: Apache-2.0 */
/* Reads boxes of tensors into the caller's memory: fsdpck_source_plan() and fsdpck_source_read(). Splits requests into
 * jobs, one for each stored chunk or part of one, sorts them by file and offset, and divides them among threads. Knows
 * no format and no sink. */
#include <fsdpck/source.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/box.h"
#include "engine/fetch.h"
#include "engine/values.h"
#include "base/hash.h"
#include "base/pool.h"

#define JOB_NBYTES (8u << 20) /* length of a run's part, cut at hash blocks, so that threads share a large tensor */

struct job {
    struct fsdpck_extent e; /* all zero: the tensor is computed */
    bool computed;
    const struct fsdpck_read *read;
    size_t ordinal;
    const uint64_t *offset, *size; /* the requested box of the chunk, in `boxes` */
    uint64_t begin, end;           /* of its elements */
    uint64_t at;                   /* payload position, the sort key */
};

struct jobs {
    struct fsdpck_source *src;
    const struct fsdpck_options *caller; /* progress and stop */
    struct fsdpck_vec list;              /* struct job */
    struct fsdpck_arena boxes;
    struct fsdpck_fetch *workers;
    unsigned nworkers;
    bool cut;
    const struct fsdpck_read *read; /* the request being split */
    const uint64_t *offset, *size;  /* its box */
    size_t ordinal;
    uint64_t found; /* number of its elements found in chunks */
    pthread_mutex_t lock;
    uint64_t done_nbytes, total_nbytes;
};

/* ---- splitting requests ---- */

static int push_job(struct jobs *js, const struct job *job, struct fsdpck_error *err)
{
    struct job *j = fsdpck_vec_push(&js->list, err);
    if (!j)
        return FSDPCK_ERR_NOMEM;
    *j = *job;
    return 0;
}

static int add_extent(void *ctx, const struct fsdpck_extent *e, struct fsdpck_error *err)
{
    struct jobs *js = ctx;
    const struct fsdpck_tensor *t = &source_tensors(js->src)[js->ordinal];
    uint64_t *box = fsdpck_arena_array(&js->boxes, 2 * (size_t)t->ndim, sizeof *box, err);
    if (!box)
        return FSDPCK_ERR_NOMEM;
    if (!fsdpck_box_intersect(t->ndim, e->offset, e->size, js->offset, js->size, box, box + t->ndim))
        return 0;
    struct job job = { .e = *e, .read = js->read, .ordinal = js->ordinal, .offset = box, .size = box + t->ndim };
    uint64_t nelem = fsdpck_box_nelem(job.size, t->ndim), item = fsdpck_dtype_info(t->dtype)->nbytes, first;
    bool run = fsdpck_fetch_is_run(e, t->ndim, job.offset, job.size, &first);
    js->found += nelem;
    js->total_nbytes += nelem * item;
    if (!run || !js->cut) {
        job.end = nelem;
        job.at = e->payload + first * item;
        return push_job(js, &job, err);
    }
    for (uint64_t at = 0; at < nelem; at = job.end) {
        uint64_t stop = ((first + at) * item / JOB_NBYTES + 1) * JOB_NBYTES / item - first;
        job.begin = at;
        job.end = stop < nelem ? stop : nelem;
        job.at = e->payload + (first + at) * item;
        int rc = push_job(js, &job, err);
        if (rc)
            return rc;
    }
    return 0;
}

/* Cuts the box of a computed tensor into rows of its first dimension. */
static int add_computed(struct jobs *js, struct fsdpck_error *err)
{
    const struct fsdpck_tensor *t = &source_tensors(js->src)[js->ordinal];
    uint64_t nelem = fsdpck_box_nelem(js->size, t->ndim), item = fsdpck_dtype_info(t->dtype)->nbytes;
    uint64_t nrows = t->ndim ? js->size[0] : 1, most = JOB_NBYTES / (nelem / nrows * item);
    js->found += nelem;
    js->total_nbytes += nelem * item;
    for (uint64_t at = 0, n; at < nrows; at += n) {
        uint64_t *box = fsdpck_arena_array(&js->boxes, 2 * (size_t)t->ndim, sizeof *box, err);
        if (!box)
            return FSDPCK_ERR_NOMEM;
        struct job job = {
            .computed = true, .read = js->read, .ordinal = js->ordinal, .offset = box, .size = box + t->ndim
        };
        n = !js->cut || nrows - at < most ? nrows - at : most ? most : 1;
        if (t->ndim) {
            memcpy(box, js->offset, t->ndim * sizeof *box);
            memcpy(box + t->ndim, js->size, t->ndim * sizeof *box);
            box[0] += at;
            box[t->ndim] = n;
        }
        int rc = push_job(js, &job, err);
        if (rc)
            return rc;
    }
    return 0;
}

/* Finds the tensor and the box of a request, or reports an error in it. */
static int check_read(struct jobs *js, const struct fsdpck_read *read, const uint64_t *zeros, struct fsdpck_error *err)
{
    const struct fsdpck_tensor *t = read->tensor, *all = source_tensors(js->src);
    if (!t || t < all || t >= all + js->src->tensors.count)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, js->src->path, "a read names a tensor of another source");
    js->ordinal = t->alias_of >= 0 ? (size_t)t->alias_of : (size_t)(t - all);
    js->read = read;
    js->offset = read->offset ? read->offset : zeros;
    js->size = read->size ? read->size : t->shape;
    if (fsdpck_box_inside(t->ndim, js->offset, js->size, t->shape))
        return 0;
    fsdpck_error_set(err, FSDPCK_ERR_USAGE, js->src->path, "a read asks for a box outside the shape");
    fsdpck_error_tensor(err, t->name);
    return FSDPCK_ERR_USAGE;
}

static int cut_read(struct jobs *js, const struct fsdpck_read *read, struct fsdpck_error *err)
{
    static const uint64_t zeros[FSDPCK_MAX_DIMS];
    int rc = check_read(js, read, zeros, err);
    if (rc)
        return rc;
    uint64_t want = fsdpck_box_nelem(js->size, read->tensor->ndim);
    js->found = 0;
    if (want == 0)
        return 0;
    rc = fsdpck_is_computed(js->src, js->ordinal)
             ? add_computed(js, err)
             : js->src->ops->extents(js->src, js->ordinal, js->offset, js->size, add_extent, js, err);
    if (rc || js->found == want)
        return rc;
    fsdpck_error_set(err, FSDPCK_ERR_MISSING, js->src->path,
                     "the stored chunks hold %llu of the %llu elements that are wanted", (unsigned long long)js->found,
                     (unsigned long long)want);
    fsdpck_error_tensor(err, read->tensor->name);
    return FSDPCK_ERR_MISSING;
}

static int by_position(const void *a, const void *b)
{
    const struct job *x = a, *y = b;
    if (x->e.file != y->e.file)
        return x->e.file < y->e.file ? -1 : 1;
    if (x->e.stream != y->e.stream) /* in the same stream, `at` is relative to its start */
        return x->e.stream < y->e.stream ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

static int cut_reads(struct jobs *js, const struct fsdpck_read *reads, size_t nreads, struct fsdpck_error *err)
{
    js->list.item_nbytes = sizeof(struct job);
    for (size_t i = 0; i < nreads; i++) {
        int rc = cut_read(js, &reads[i], err);
        if (rc)
            return rc;
    }
    if (js->list.count)
        qsort(js->list.data, js->list.count, sizeof(struct job), by_position);
    return 0;
}

/* ---- running jobs ---- */

static int run_job(struct jobs *js, const struct job *j, struct fsdpck_fetch *f, struct fsdpck_error *err)
{
    static const uint64_t zeros[FSDPCK_MAX_DIMS];
    const struct fsdpck_tensor *t = &source_tensors(js->src)[j->ordinal];
    int64_t dense[FSDPCK_MAX_DIMS];
    const struct fsdpck_read *r = j->read;
    struct fsdpck_fetch_target to = {
        .ordinal = j->ordinal, .offset = r->offset ? r->offset : zeros, .dst = r->dst, .strides = r->strides
    };
    if (!to.strides) {
        fsdpck_dense_strides(t->ndim, r->size ? r->size : t->shape, fsdpck_dtype_info(t->dtype)->nbytes, dense);
        to.strides = dense;
    }
    if (j->computed) {
        uint8_t *dst = to.dst;
        for (uint32_t d = 0; dst && d < t->ndim; d++) /* NULL: a plan */
            dst += (int64_t)(j->offset[d] - to.offset[d]) * to.strides[d];
        return fsdpck_values_box(f, j->ordinal, j->offset, j->size, dst, to.strides, err);
    }
    return fsdpck_fetch_box(f, &j->e, j->offset, j->size, j->begin, j->end, &to, err);
}

static int work(void *ctx, size_t piece, unsigned worker, struct fsdpck_error *err)
{
    struct jobs *js = ctx;
    struct fsdpck_fetch *f = &js->workers[worker];
    const struct job *j = (const struct job *)js->list.data + piece;
    const struct fsdpck_tensor *t = &source_tensors(js->src)[j->ordinal];
    uint64_t before = f->needed_nbytes;
    int rc = run_job(js, j, f, err);
    if (!rc && js->caller->progress) {
        pthread_mutex_lock(&js->lock);
        js->done_nbytes += j->computed ? fsdpck_box_nelem(j->size, t->ndim) * fsdpck_dtype_info(t->dtype)->nbytes
                                       : f->needed_nbytes - before;
        js->caller->progress(js->caller->ctx, js->done_nbytes, js->total_nbytes);
        pthread_mutex_unlock(&js->lock);
    }
    return rc;
}

static unsigned workers_for(const struct fsdpck_source *src, size_t njobs)
{
    uint64_t fit = src->opt.memory_nbytes / fsdpck_fetch_nbytes(src);
    uint64_t wanted = (uint64_t)src->opt.nthreads * FSDPCK_POOL_WAITING, n = wanted < fit ? wanted : fit;
    n = n < njobs ? n : njobs;
    return n ? (unsigned)n : 1;
}

static int init_workers(struct jobs *js, unsigned n, struct fsdpck_error *err)
{
    js->workers = calloc(n, sizeof *js->workers);
    if (!js->workers)
        return fsdpck_error_nomem(err, n * sizeof *js->workers);
    for (js->nworkers = 0; js->nworkers < n; js->nworkers++) {
        int rc = fsdpck_fetch_init(&js->workers[js->nworkers], js->src, err);
        if (rc)
            return rc;
    }
    return 0;
}

static void free_jobs(struct jobs *js)
{
    for (unsigned i = 0; i < js->nworkers; i++)
        fsdpck_fetch_free(&js->workers[i]);
    free(js->workers);
    fsdpck_vec_free(&js->list);
    fsdpck_arena_free(&js->boxes);
    pthread_mutex_destroy(&js->lock);
}

int fsdpck_source_read_for(struct fsdpck_source *src, const struct fsdpck_read *reads, size_t nreads,
                           const struct fsdpck_options *caller, struct fsdpck_error *err)
{
    struct jobs js = { .src = src, .caller = caller, .cut = true, .lock = PTHREAD_MUTEX_INITIALIZER };
    struct fsdpck_error own = { 0 };
    err = err ? err : &own;
    int rc = cut_reads(&js, reads, nreads, err);
    unsigned n = workers_for(src, js.list.count);
    if (!rc)
        rc = init_workers(&js, n, err);
    if (!rc)
        rc = fsdpck_pool_run(n, js.list.count, work, &js, caller->stop, err);
    free_jobs(&js);
    return rc;
}

int fsdpck_source_read(struct fsdpck_source *src, const struct fsdpck_read *reads, size_t nreads,
                       struct fsdpck_error *err)
{
    return fsdpck_source_read_for(src, reads, nreads, &src->opt, err);
}

int fsdpck_source_plan(struct fsdpck_source *src, const struct fsdpck_read *reads, size_t nreads,
                       struct fsdpck_plan *out, struct fsdpck_error *err)
{
    struct jobs js = { .src = src, .lock = PTHREAD_MUTEX_INITIALIZER };
    struct fsdpck_fetch f = { .src = src, .dry = true };
    struct fsdpck_error own = { 0 };
    err = err ? err : &own;
    int rc = cut_reads(&js, reads, nreads, err);
    const struct job *list = js.list.data;
    memset(out, 0, sizeof *out);
    for (size_t i = 0; !rc && i < js.list.count; i++) {
        out->nfiles += i == 0 || list[i].e.file != list[i - 1].e.file;
        rc = run_job(&js, &list[i], &f, err);
    }
    out->needed_nbytes = f.needed_nbytes;
    out->read_nbytes = f.read_nbytes;
    out->nruns = f.nruns;
    out->peak_nbytes = (uint64_t)workers_for(src, js.list.count ? js.list.count : 1) * fsdpck_fetch_nbytes(src);
    fsdpck_fetch_free(&f); /* a view may have made a state */
    free_jobs(&js);
    return rc;
}
