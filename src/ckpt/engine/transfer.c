/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a transfer: divides the memory budget among threads, which take one lane after another, and joins the CRC-32s
 * and content ids that the lanes leave. Knows neither formats nor directories. */
#include "engine/transfer.h"

#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/pool.h"
#include "engine/checks.h"
#include "engine/transfer_impl.h"
#include "tensor/box.h"

#define BAND_MAX_NBYTES    (4u << 20)
#define BAND_IN_MEMORY     (512u << 10) /* where nothing waits for a disk: a cache holds it from the read to the write */
#define WORKER_MIN_NBYTES  (12ull << 20) /* use fewer threads rather than give each less than this */
#define MEMORY_MIN_NBYTES  (8ull << 20)
#define STAGING_MIN_NBYTES (4ull << 20) /* that wide bands leave */

/* ---- memory ---- */

static bool is_in_memory(const struct fsdpck_io *io, const char *path, size_t nbytes)
{
    char *text = strndup(path, nbytes);
    const bool yes = text && io->in_memory(io->ctx, text) == 1;
    free(text);
    return yes;
}

/* Whether all files lie in memory. Then no worker ever waits, and more of them than threads only share its caches. */
static bool is_all_in_memory(const struct fsdpck_transfer *t)
{
    const struct fsdpck_io *io = t->src->io;
    const char *slash = t->nfiles ? strrchr(t->files[0].path, '/') : NULL; /* all are made in one folder */
    bool yes = io->in_memory && slash && is_in_memory(io, t->files[0].path, (size_t)(slash - t->files[0].path) + 1);
    for (size_t i = 0; i < t->src->files.count && yes; i++)
        yes = is_in_memory(io, source_files(t->src)[i].path, strlen(source_files(t->src)[i].path));
    return yes;
}

/* Turned tensors take most of a worker's memory, if they can have it. */
static uint64_t turned_band(const struct transfer_engine *e, uint64_t turned, uint64_t each, uint64_t nbands)
{
    const uint64_t room = each > STAGING_MIN_NBYTES ? (each - STAGING_MIN_NBYTES) / nbands : 0,
                   most = room > FSDPCK_PAGE_NBYTES
                              ? (room - FSDPCK_PAGE_NBYTES) / FSDPCK_BLOCK_NBYTES * FSDPCK_BLOCK_NBYTES
                              : 0,
                   band = most < turned ? most : turned;
    return band > e->band_nbytes ? band : e->band_nbytes;
}

uint64_t fsdpck_transfer_least_memory(const struct fsdpck_source *src)
{
    return MEMORY_MIN_NBYTES + fsdpck_fetch_stream_nbytes(src) + fsdpck_fetch_values_nbytes(src);
}

static int share_memory(struct transfer_engine *e, struct fsdpck_error *err)
{
    uint64_t fetch = fsdpck_fetch_nbytes(e->t->src), nbands = e->t->compress ? 4 : 3,
             packer = e->t->compress ? FSDPCK_PACKER_OWN_NBYTES : 0;
    uint64_t stream = fsdpck_fetch_stream_nbytes(e->t->src), values = fsdpck_fetch_values_nbytes(e->t->src);
    uint64_t least = fsdpck_transfer_least_memory(e->t->src);
    if (e->opt->memory_nbytes < least)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                                "a memory budget of %llu bytes is too small; at least %lluMiB are needed%s%s",
                                (unsigned long long)e->opt->memory_nbytes, (unsigned long long)((least - 1) >> 20) + 1,
                                stream ? " where items are zstd streams" : "", values ? " to compute the values" : "");
    const uint64_t turned =
        (e->t->src->turned_nbytes + FSDPCK_BLOCK_NBYTES - 1) / FSDPCK_BLOCK_NBYTES * FSDPCK_BLOCK_NBYTES;
    uint64_t fit = e->opt->memory_nbytes / (WORKER_MIN_NBYTES + nbands * turned + stream + values);
    const bool memory = is_all_in_memory(e->t);
    uint64_t wanted = (uint64_t)e->opt->nthreads * (memory ? 1 : FSDPCK_POOL_WAITING);
    e->nworkers = fit == 0 ? 1 : (unsigned)(wanted < fit ? wanted : fit);
    uint64_t each = e->opt->memory_nbytes / e->nworkers - fetch - packer;
    uint64_t band = each / (2 * nbands) / FSDPCK_BLOCK_NBYTES * FSDPCK_BLOCK_NBYTES;
    const uint64_t most = memory ? BAND_IN_MEMORY : BAND_MAX_NBYTES;
    e->band_nbytes = band < most ? band : most;
    if (turned > e->band_nbytes)
        e->band_nbytes = turned_band(e, turned, each, nbands);
    e->staging_nbytes = each - nbands * (e->band_nbytes + FSDPCK_PAGE_NBYTES);
    e->max_chunks = e->staging_nbytes / (FSDPCK_BLOCK_NBYTES + FSDPCK_PAGE_NBYTES);
    return 0;
}

static void free_workers(struct transfer_engine *e)
{
    for (unsigned i = 0; e->workers && i < e->nworkers; i++) {
        struct transfer_worker *w = &e->workers[i];
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
static int init_worker(struct transfer_engine *e, struct transfer_worker *w, struct fsdpck_error *err)
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

static int init_workers(struct transfer_engine *e, struct fsdpck_error *err)
{
    if (e->nworkers > e->lanes.count)
        e->nworkers = e->lanes.count ? (unsigned)e->lanes.count : 1;
    e->workers = calloc(e->nworkers, sizeof *e->workers);
    int rc = e->workers ? 0 : fsdpck_error_nomem(err, e->nworkers * sizeof *e->workers);
    for (unsigned i = 0; !rc && i < e->nworkers; i++)
        rc = init_worker(e, &e->workers[i], err);
    return rc;
}

/* ---- lanes ---- */

static int run_lane(void *ctx, size_t number, unsigned worker, struct fsdpck_error *err)
{
    struct transfer_engine *e = ctx;
    int rc = fsdpck_transfer_lane(e, number, worker, err);
    if (rc && e->turns)
        fsdpck_turns_fail(e->turns, rc, err);
    return rc;
}

/* ---- after the lanes ---- */

/* Joins the parts of chunks that were cut, in order. */
static void join_chunks(struct transfer_engine *e)
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
static int join_contents(struct transfer_engine *e, struct fsdpck_error *err)
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
            sel->tensors[i].dtype != t->dtype || fsdpck_transfer_edits(e->t, (uint32_t)i))
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

static void count(struct transfer_engine *e, struct fsdpck_transfer_result *result)
{
    for (unsigned i = 0; i < e->nworkers; i++)
        result->read_nbytes += e->workers[i].fetch.read_nbytes;
    result->payload_nbytes += e->done_nbytes;
}

static int prepare(struct transfer_engine *e, struct fsdpck_error *err)
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
    return !rc ? fsdpck_out_files_create(e->out, e->opt->nthreads, e->opt->stop, err) : rc;
}

int fsdpck_transfer_run(struct fsdpck_transfer *t, struct fsdpck_transfer_result *result, struct fsdpck_error *err)
{
    struct transfer_engine e = { .t = t, .opt = t->opt ? t->opt : &t->src->opt, .lock = PTHREAD_MUTEX_INITIALIZER };
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
