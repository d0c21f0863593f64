/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's loop. Each thread takes one lane after another, reads its elements band by band from the source, casts
 * them, and passes them to their chunks. Knows neither formats nor directories. */
#include "engine/transfer.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/box.h"
#include "engine/checks.h"
#include "engine/fetch.h"
#include "engine/lanes.h"
#include "base/buffer.h"
#include "base/pool.h"
#include "base/stop.h"
#include "tensor/rows.h"
#include "engine/stream.h"
#include "engine/turns.h"

#define BAND_MAX_NBYTES   (4u << 20)
#define STREAM_MAX_NBYTES (1u << 20)
#define WORKER_MIN_NBYTES (12ull << 20) /* use fewer threads rather than give each less than this */
#define MEMORY_MIN_NBYTES (8ull << 20)

struct worker {
    struct fsdpck_fetch fetch;
    struct fsdpck_rows rows;
    uint8_t *band;   /* a page longer than the band, to match the file's alignment */
    uint8_t *cast;   /* the same size, after a cast */
    uint8_t *gather; /* a chunk's part of a band, if it is not a run */
    uint8_t *staging;
    struct fsdpck_stream *streams; /* (max_chunks) */
    struct fsdpck_packer packer;
};

struct lane_result { /* of a lane with a single chunk */
    uint32_t crc32;
    uint64_t nbytes;
    struct fsdpck_content content;
};

struct engine {
    struct fsdpck_transfer *t;
    const struct fsdpck_options *opt;
    struct fsdpck_lanes lanes;
    struct lane_result *results; /* (lanes.count) */
    struct fsdpck_turns *turns;  /* if any chunk is compressed */
    struct fsdpck_out_files *out;
    struct worker *workers;
    unsigned nworkers;
    uint64_t band_nbytes, staging_nbytes;
    size_t max_chunks;
    pthread_mutex_t lock;
    uint64_t done_nbytes, total_nbytes;
};

/* ---- memory ---- */

static int share_memory(struct engine *e, struct fsdpck_error *err)
{
    uint64_t fetch = fsdpck_fetch_nbytes(e->t->src), nbands = e->t->compress ? 4 : 3,
             packer = e->t->compress ? FSDPCK_PACKER_OWN_NBYTES : 0;
    uint64_t stream = fsdpck_fetch_stream_nbytes(e->t->src), least = MEMORY_MIN_NBYTES + stream;
    if (e->opt->memory_nbytes < least)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                                "a memory budget of %llu bytes is too small; at least %lluMiB are needed%s",
                                (unsigned long long)e->opt->memory_nbytes, (unsigned long long)(least >> 20),
                                stream ? " where items are zstd streams" : "");
    uint64_t fit = e->opt->memory_nbytes / (WORKER_MIN_NBYTES + stream);
    uint64_t wanted = (uint64_t)e->opt->nthreads * FSDPCK_POOL_WAITING;
    e->nworkers = fit == 0 ? 1 : (unsigned)(wanted < fit ? wanted : fit);
    uint64_t each = e->opt->memory_nbytes / e->nworkers - fetch - packer;
    uint64_t band = each / (2 * nbands) / FSDPCK_BLOCK_NBYTES * FSDPCK_BLOCK_NBYTES;
    e->band_nbytes = band < BAND_MAX_NBYTES ? band : BAND_MAX_NBYTES;
    e->staging_nbytes = each - nbands * (e->band_nbytes + FSDPCK_PAGE_NBYTES);
    e->max_chunks = e->staging_nbytes / (FSDPCK_BLOCK_NBYTES + FSDPCK_PAGE_NBYTES);
    return 0;
}

static void free_workers(struct engine *e)
{
    for (unsigned i = 0; e->workers && i < e->nworkers; i++) {
        struct worker *w = &e->workers[i];
        fsdpck_fetch_free(&w->fetch);
        fsdpck_rows_free(&w->rows);
        fsdpck_packer_free(&w->packer);
        free(w->band);
        free(w->cast);
        free(w->gather);
        free(w->staging);
        free(w->streams);
    }
    free(e->workers);
}

/* Untouched pages cost nothing, so every worker gets every buffer. */
static int init_worker(struct engine *e, struct worker *w, struct fsdpck_error *err)
{
    uint64_t band = e->band_nbytes + FSDPCK_PAGE_NBYTES,
             staging = e->staging_nbytes / FSDPCK_PAGE_NBYTES * FSDPCK_PAGE_NBYTES;
    int rc = fsdpck_fetch_init(&w->fetch, e->t->src, err);
    if (!rc)
        rc = fsdpck_rows_init(&w->rows, err);
    if (!rc && e->t->compress)
        rc = fsdpck_packer_init(&w->packer, e->band_nbytes / FSDPCK_BLOCK_NBYTES, err);
    if (rc)
        return rc;
    w->band = fsdpck_buffer_new(band);
    w->cast = fsdpck_buffer_new(band);
    w->gather = fsdpck_buffer_new(band);
    w->staging = fsdpck_buffer_new(staging);
    w->streams = calloc(e->max_chunks, sizeof *w->streams);
    return w->band && w->cast && w->gather && w->staging && w->streams ? 0
                                                                       : fsdpck_error_nomem(err, 3 * band + staging);
}

static int init_workers(struct engine *e, struct fsdpck_error *err)
{
    if (e->nworkers > e->lanes.count)
        e->nworkers = e->lanes.count ? (unsigned)e->lanes.count : 1;
    e->workers = calloc(e->nworkers, sizeof *e->workers);
    int rc = e->workers ? 0 : fsdpck_error_nomem(err, e->nworkers * sizeof *e->workers);
    for (unsigned i = 0; !rc && i < e->nworkers; i++)
        rc = init_worker(e, &e->workers[i], err);
    return rc;
}

/* ---- bands ---- */

struct band {
    struct engine *e;
    struct worker *w;
    const struct fsdpck_lane *lane;
    const struct fsdpck_tensor *t;
    size_t source;
    enum fsdpck_dtype from, to;
    bool edited;
    uint64_t begin, end; /* elements */
    const uint8_t *data; /* of dtype `to` */
    struct fsdpck_error *err;
};

static bool is_edited(const struct fsdpck_transfer *t, uint32_t tensor)
{
    return t->edit && t->edit->wants(t->edit->ctx, tensor);
}

/* Converts elements from the source's dtype to the selection's, by edit or cast. */
static int change(const struct band *b, uint64_t begin, uint64_t nelem, const uint8_t *in, uint8_t *out)
{
    const struct fsdpck_edit *edit = b->e->t->edit;
    if (b->edited)
        return edit->apply(edit->ctx, b->lane->tensor, begin, nelem, in, out, b->err);
    fsdpck_dtype_cast(b->from, in, b->to, out, nelem);
    return 0;
}

/* Loads elements [begin, end) into memory; their first byte has the same offset in a page as `position`. */
static int load(struct band *b, uint64_t position)
{
    uint64_t lead = position % FSDPCK_PAGE_NBYTES, item = fsdpck_dtype_info(b->from)->nbytes;
    bool cast = b->from != b->to || b->edited;
    uint8_t *dst = cast ? b->w->band : b->w->band + lead;
    uint64_t first = b->begin, nelem = b->end - b->begin;
    b->data = dst;
    if (!cast)
        return fsdpck_fetch_range(&b->w->fetch, b->source, first, b->end, dst, b->err);
    uint64_t at_once = b->e->band_nbytes / item, out = fsdpck_dtype_info(b->to)->nbytes;
    for (uint64_t at = 0; at < nelem; at += at_once) { /* the input of a cast can be wider than the band */
        uint64_t n = nelem - at < at_once ? nelem - at : at_once;
        int rc = fsdpck_fetch_range(&b->w->fetch, b->source, first + at, first + at + n, dst, b->err);
        if (!rc)
            rc = change(b, first + at, n, dst, b->w->cast + lead + at * out);
        if (rc)
            return rc;
    }
    b->data = b->w->cast + lead;
    return 0;
}

static uint64_t row_elements(const struct fsdpck_tensor *t)
{
    return t->ndim ? t->nelem / t->shape[0] : 1;
}

struct chunk_copy { /* copies one chunk's part of a band */
    const struct band *b;
    const struct fsdpck_out_chunk *c;
    uint8_t *dst;
    const uint8_t *data;
    uint64_t item;
};

static int copy_part(void *ctx, const uint64_t *offset, const uint64_t *size)
{
    struct chunk_copy *p = ctx;
    uint32_t n = p->b->t->ndim;
    uint64_t o[FSDPCK_MAX_DIMS], s[FSDPCK_MAX_DIMS], skip = 0;
    int64_t from[FSDPCK_MAX_DIMS], to[FSDPCK_MAX_DIMS];
    const uint8_t *data = p->data;
    p->data += fsdpck_box_nelem(size, n) * p->item;
    if (!fsdpck_box_intersect(n, offset, size, p->c->offset, p->c->size, o, s))
        return 0;
    fsdpck_dense_strides(n, size, p->item, from);
    fsdpck_dense_strides(n, s, p->item, to);
    for (uint32_t d = 0; d < n; d++)
        skip += (o[d] - offset[d]) * (uint64_t)from[d];
    fsdpck_copy_strided(n, s, p->item, p->dst, to, data + skip, from);
    p->dst += fsdpck_box_nelem(s, n) * p->item;
    return 0;
}

/* Passes the band's elements that belong to a chunk, in the chunk's order, to its stream. */
static int feed(struct band *b, struct fsdpck_stream *s)
{
    struct chunk_copy p = {
        .b = b, .c = s->chunk, .dst = b->w->gather, .data = b->data, .item = fsdpck_dtype_info(b->to)->nbytes
    };
    fsdpck_range_boxes(b->t->ndim, b->t->shape, b->begin, b->end, copy_part, &p);
    return fsdpck_stream_gather(s, b->w->gather, (uint64_t)(p.dst - b->w->gather), b->err);
}

static void report(struct engine *e, uint64_t nbytes)
{
    pthread_mutex_lock(&e->lock);
    e->done_nbytes += nbytes;
    if (e->opt->progress)
        e->opt->progress(e->opt->ctx, e->done_nbytes, e->total_nbytes);
    pthread_mutex_unlock(&e->lock);
}

static void open_streams(struct band *b)
{
    const struct fsdpck_lane *lane = b->lane;
    struct engine *e = b->e;
    uint64_t each = e->staging_nbytes / lane->count / FSDPCK_BLOCK_NBYTES * FSDPCK_BLOCK_NBYTES;
    while (each > FSDPCK_BLOCK_NBYTES && lane->count * (each + FSDPCK_PAGE_NBYTES) > e->staging_nbytes)
        each -= FSDPCK_BLOCK_NBYTES;
    each = each < STREAM_MAX_NBYTES ? each : STREAM_MAX_NBYTES;
    for (size_t i = 0; i < lane->count; i++) {
        const struct fsdpck_out_chunk *c = &e->t->chunks[e->lanes.order[lane->first + i]];
        uint64_t at = 0, first, last;
        if (lane->single) {
            fsdpck_box_span(b->t->ndim, b->t->shape, c->offset, c->size, &first, &last);
            at = (lane->begin - first) * fsdpck_dtype_info(b->to)->nbytes;
        }
        fsdpck_stream_begin(&b->w->streams[i], e->out, c, at, b->w->staging + i * (each + FSDPCK_PAGE_NBYTES), each);
        b->w->streams[i].packer = &b->w->packer;
    }
}

static int run_band(struct band *b, uint64_t end)
{
    struct fsdpck_stream *s = b->w->streams;
    uint64_t nbytes = (end - b->begin) * fsdpck_dtype_info(b->to)->nbytes;
    b->end = end;
    int rc = load(b, b->lane->single ? fsdpck_stream_position(s) : 0);
    if (rc)
        return rc;
    if (b->lane->whole_rows)
        fsdpck_rows_add(&b->w->rows, b->data, nbytes);
    if (b->lane->single)
        rc = fsdpck_stream_write(s, b->data, nbytes, b->err);
    for (size_t i = 0; !rc && !b->lane->single && i < b->lane->count; i++)
        rc = feed(b, &s[i]);
    if (!rc && b->lane->owns_content)
        report(b->e, nbytes);
    return rc;
}

/* Stores the CRC-32s of the lane's chunks, and its content id. */
static void keep_results(struct band *b, size_t number)
{
    struct engine *e = b->e;
    struct lane_result *result = &e->results[number];
    result->content = b->w->rows.sum;
    if (b->lane->single) {
        uint64_t item = fsdpck_dtype_info(b->to)->nbytes;
        result->crc32 = b->w->streams[0].crc32;
        result->nbytes = (b->lane->end - b->lane->begin) * item;
        return;
    }
    for (size_t i = 0; i < b->lane->count; i++)
        e->t->chunks[e->lanes.order[b->lane->first + i]].crc32 = b->w->streams[i].crc32;
}

static int move_lane(struct engine *e, size_t number, unsigned worker, struct fsdpck_error *err)
{
    const struct fsdpck_lane *lane = &e->lanes.list[number];
    const struct fsdpck_chosen *chosen = &e->t->selection->tensors[lane->tensor];
    struct band b = { .e = e,
                      .w = &e->workers[worker],
                      .lane = lane,
                      .t = &source_tensors(e->t->src)[chosen->source],
                      .source = chosen->source,
                      .to = chosen->dtype,
                      .begin = lane->begin,
                      .err = err };
    b.from = b.t->dtype;
    b.edited = is_edited(e->t, lane->tensor);
    uint64_t item = fsdpck_dtype_info(b.to)->nbytes, step = e->band_nbytes / item, row = row_elements(b.t);
    open_streams(&b);
    fsdpck_packer_begin(&b.w->packer, e->turns && fsdpck_turns_has(e->turns, number) ? e->turns : NULL, number);
    if (lane->whole_rows)
        fsdpck_rows_begin(&b.w->rows, row * item, lane->begin / row);
    int rc = 0;
    while (!rc && b.begin < lane->end) {
        if (fsdpck_stop_asked(e->opt->stop))
            return fsdpck_error_set(err, FSDPCK_ERR_STOPPED, NULL, "stopped");
        rc = run_band(&b, lane->end - b.begin > step ? b.begin + step : lane->end);
        b.begin = b.end;
    }
    for (size_t i = 0; !rc && i < lane->count; i++)
        rc = fsdpck_stream_end(&b.w->streams[i], err);
    if (!rc)
        keep_results(&b, number);
    return rc;
}

static int run_lane(void *ctx, size_t number, unsigned worker, struct fsdpck_error *err)
{
    struct engine *e = ctx;
    int rc = move_lane(e, number, worker, err);
    if (rc && e->turns)
        fsdpck_turns_fail(e->turns, rc, err);
    return rc;
}

/* ---- after the lanes ---- */

/* Joins the parts of chunks that were cut, in order. */
static void join_chunks(struct engine *e)
{
    for (size_t i = 0; i < e->lanes.count; i++) {
        const struct fsdpck_lane *lane = &e->lanes.list[i];
        struct fsdpck_out_chunk *c = &e->t->chunks[e->lanes.order[lane->first]];
        bool again = i > 0 && lane->single && e->lanes.list[i - 1].single && e->lanes.list[i - 1].first == lane->first;
        if (!lane->single)
            continue;
        c->crc32 =
            again ? fsdpck_crc32_combine(c->crc32, e->results[i].crc32, e->results[i].nbytes) : e->results[i].crc32;
        c->has_content = lane->whole_rows && (!again || c->has_content);
        if (!again)
            c->content = (struct fsdpck_content){ 0 };
        fsdpck_content_add(&c->content, &e->results[i].content);
    }
}

/* Computes the content ids of whole tensors, and compares them with the source's, if it has any: this proves that the
 * output equals the input. */
static int join_contents(struct engine *e, struct fsdpck_error *err)
{
    const struct fsdpck_selection *sel = e->t->selection;
    struct fsdpck_transfer_content *contents = e->t->contents;
    for (size_t i = 0; i < sel->ntensors; i++)
        contents[i] = (struct fsdpck_transfer_content){ .known = sel->tensors[i].alias_of < 0 };
    for (size_t i = 0; i < e->lanes.count; i++) {
        const struct fsdpck_lane *lane = &e->lanes.list[i];
        contents[lane->tensor].known &= lane->whole_rows;
        if (lane->owns_content)
            fsdpck_content_add(&contents[lane->tensor].content, &e->results[i].content);
    }
    for (size_t i = 0; i < sel->ntensors; i++) {
        const struct fsdpck_tensor *t = &source_tensors(e->t->src)[sel->tensors[i].source];
        struct fsdpck_content want;
        if (!t->has_content || e->t->src->opt.no_verify || sel->tensors[i].alias_of >= 0 ||
            sel->tensors[i].dtype != t->dtype || is_edited(e->t, (uint32_t)i))
            continue;
        fsdpck_content_load(&want, t->content);
        if (contents[i].known && (want.low != contents[i].content.low || want.high != contents[i].content.high)) {
            fsdpck_error_set(err, FSDPCK_ERR_DAMAGED, e->t->src->path,
                             "what was read does not have the content id that the source states");
            fsdpck_error_tensor(err, t->name);
            return FSDPCK_ERR_DAMAGED;
        }
        contents[i] = (struct fsdpck_transfer_content){ .known = true, .content = want };
    }
    return 0;
}

static void count(struct engine *e, struct fsdpck_transfer_result *result)
{
    for (unsigned i = 0; i < e->nworkers; i++)
        result->read_nbytes += e->workers[i].fetch.read_nbytes;
    result->payload_nbytes += e->done_nbytes;
}

static int prepare(struct engine *e, struct fsdpck_error *err)
{
    struct fsdpck_transfer *t = e->t;
    int rc = share_memory(e, err);
    if (!rc)
        rc = fsdpck_lanes_make(t, e->max_chunks, &e->lanes, err);
    if (rc)
        return rc;
    e->results = calloc(e->lanes.count ? e->lanes.count : 1, sizeof *e->results);
    if (!e->results)
        return fsdpck_error_nomem(err, e->lanes.count * sizeof *e->results);
    for (size_t i = 0; i < t->nchunks; i++) {
        const struct fsdpck_chosen *c = &t->selection->tensors[t->chunks[i].tensor];
        e->total_nbytes += fsdpck_box_nelem(t->chunks[i].size, source_tensors(t->src)[c->source].ndim) *
                           fsdpck_dtype_info(c->dtype)->nbytes;
    }
    if (t->compress && !(e->turns = fsdpck_turns_new(t, &e->lanes, e->opt->stop, err)))
        return FSDPCK_ERR_NOMEM;
    rc = init_workers(e, err);
    if (!rc && !(e->out = fsdpck_out_files_new(t->src->io, t->files, t->nfiles, err)))
        rc = FSDPCK_ERR_NOMEM;
    return !rc ? fsdpck_out_files_create(e->out, err) : rc;
}

int fsdpck_transfer_run(struct fsdpck_transfer *t, struct fsdpck_transfer_result *result, struct fsdpck_error *err)
{
    struct engine e = { .t = t, .opt = t->opt ? t->opt : &t->src->opt, .lock = PTHREAD_MUTEX_INITIALIZER };
    const struct fsdpck_edit *edit = t->edit;
    int rc = edit && edit->begin ? edit->begin(edit->ctx, t->selection, err) : 0;
    if (!rc)
        rc = prepare(&e, err);
    if (!rc)
        rc = fsdpck_pool_run(e.nworkers, e.lanes.count, run_lane, &e, e.opt->stop, err);
    if (!rc)
        rc = fsdpck_checks_finish(t->src, &result->read_nbytes, err);
    if (!rc && edit && edit->end)
        rc = edit->end(edit->ctx, err);
    if (!rc) {
        join_chunks(&e);
        count(&e, result);
        rc = t->contents ? join_contents(&e, err) : 0;
    }
    fsdpck_out_files_free(e.out);
    free_workers(&e);
    free(e.results);
    fsdpck_turns_free(e.turns);
    fsdpck_lanes_free(&e.lanes);
    pthread_mutex_destroy(&e.lock);
    return rc;
}
