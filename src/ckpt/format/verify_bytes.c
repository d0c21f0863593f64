/* SPDX-License-Identifier: Apache-2.0 */
/* Reads every byte of shard files once, in large windows, in several threads. Checks payload blocks against their
 * hashes, and the bytes between the payloads against the file's envelope hash. Knows nothing of the index. */
#include "format/verify_bytes_impl.h"

#include <stdlib.h>

#include "base/buffer.h"
#include "base/pool.h"
#include "engine/file_read.h"

/* ---- windows ---- */

static int read_window(const struct verify_job *w, uint8_t **data, struct fsdpck_error *err)
{
    const struct fsdpck_verify_span *last = &w->spans[w->nspans - 1];
    uint64_t begin = verify_job_position(w, w->spans), end = verify_job_position(w, last) + (last->end - last->begin);
    int rc = fsdpck_file_read(w->rd->v->src, w->rank, begin, end - begin, w->w->buffer, data, err);
    for (size_t i = 0; !rc && i < w->nspans; i++)
        if (verify_job_entry(w, &w->spans[i]))
            rc = fsdpck_verify_blocks(w, &w->spans[i], *data + (verify_job_position(w, &w->spans[i]) - begin), err);
    return rc;
}

static int check_bytes(const struct verify_job *w, struct fsdpck_error *err)
{
    const struct fsdpck_table_entry *e = verify_job_entry(w, w->spans);
    uint8_t *data = NULL;
    int rc = 0;
    if (e && e->codec == FSDPCK_CODEC_PLANES)
        rc = fsdpck_verify_compressed(w, err);
    else if (!verify_job_is_long_gap(w))
        rc = read_window(w, &data, err);
    return w->turn == FSDPCK_NO_TURN ? rc : fsdpck_verify_envelope_add(w, data, rc, err);
}

static void count(const struct verify_job *w)
{
    struct fsdpck_verifier *v = w->rd->v;
    pthread_mutex_lock(&v->lock);
    for (size_t i = 0; i < w->nspans; i++) {
        uint64_t nbytes = verify_job_entry(w, &w->spans[i]) ? w->spans[i].end - w->spans[i].begin : 0;
        w->rd->done_nbytes += nbytes;
        if (nbytes && verify_job_entry(w, &w->spans[i])->codec == FSDPCK_CODEC_STORED)
            __atomic_fetch_add(&w->rd->read_nbytes, nbytes, __ATOMIC_RELAXED);
        v->result->nblocks += fsdpck_nblocks(nbytes);
    }
    if (v->src->opt.progress)
        v->src->opt.progress(v->src->opt.ctx, w->rd->done_nbytes, w->rd->total_nbytes);
    pthread_mutex_unlock(&v->lock);
}

static void suspect_all(const struct verify_job *w)
{
    for (size_t i = 0; w->t && i < w->nspans; i++) {
        const struct fsdpck_table_entry *e = verify_job_entry(w, &w->spans[i]);
        if (e && e->kind == FSDPCK_CHUNK_TENSOR && e->ordinal < w->rd->v->src->tensors.count)
            fsdpck_verify_contents_suspect(w->rd->v->contents, e->ordinal);
    }
}

static int check_window(void *ctx, size_t number, unsigned worker, struct fsdpck_error *err)
{
    struct verify_reader *rd = ctx;
    const struct fsdpck_verify_window *window = (const struct fsdpck_verify_window *)rd->windows.data + number;
    size_t end = number + 1 < rd->windows.count ? window[1].first : rd->spans.count;
    struct verify_job w = { .rd = rd,
                            .w = &rd->workers[worker],
                            .rank = window->rank,
                            .turn = window->turn,
                            .spans = (const struct fsdpck_verify_span *)rd->spans.data + window->first,
                            .nspans = end - window->first };
    struct fsdpck_error e = { 0 };
    int rc = fsdpck_index_table(rd->v->src, w.rank, &w.t, &e);
    if (!rc)
        rc = check_bytes(&w, &e);
    if (rc) {
        suspect_all(&w);
        if (!fsdpck_is_system_error(rc))
            fsdpck_verifier_unread(rd->v, w.rank);
        return fsdpck_verifier_report_error(rd->v, rc, &e, w.rank, err);
    }
    count(&w);
    return 0;
}

/* ---- all files ---- */

/* Returns whether the file seems to be in the page cache; this decides the window size and affects only speed. */
static bool seems_cached(struct verify_reader *rd, uint32_t rank, uint64_t nbytes)
{
    return nbytes > FSDPCK_VERIFY_CACHED_NBYTES &&
           fsdpck_file_read_cached(rd->v->src, rank, nbytes / 2, FSDPCK_VERIFY_CACHED_NBYTES / 2, rd->workers->buffer);
}

static int cut_file(struct verify_reader *rd, uint32_t rank, const struct index_file *file, struct fsdpck_error *err)
{
    uint64_t at_once = seems_cached(rd, rank, file->table) ? FSDPCK_VERIFY_CACHED_NBYTES : FSDPCK_VERIFY_WINDOW_NBYTES;
    int rc = fsdpck_verify_cut(rank, &file->loaded, file->table, at_once, &rd->spans, &rd->windows,
                               &rd->envelopes[rank].nturns, err);
    for (uint64_t i = 0; i < file->loaded.nentries; i++)
        rd->total_nbytes += file->loaded.entries[i].decoded;
    return !rc && !(rd->envelopes[rank].hasher = fsdpck_hasher_new()) ? fsdpck_error_nomem(err, 0) : rc;
}

static int cut_files(struct verify_reader *rd, struct fsdpck_error *err)
{
    const struct fsdpck_index *index = rd->v->src->impl;
    const struct index_file *files = index->files.data;
    int rc = 0;
    for (uint32_t rank = 0; !rc && rank < rd->v->src->files.count; rank++)
        if (files[rank].is_loaded)
            rc = cut_file(rd, rank, &files[rank], err);
    return rc;
}

/* A window of the largest file; that of a small checkpoint needs no huge page, whose clearing would cost more than the
 * check. */
static uint64_t window_nbytes(const struct verify_reader *rd)
{
    const struct fsdpck_index *index = rd->v->src->impl;
    const struct index_file *files = index->files.data;
    uint64_t largest = 0;
    for (uint32_t rank = 0; rank < rd->v->src->files.count; rank++)
        if (files[rank].is_loaded && files[rank].table > largest)
            largest = files[rank].table;
    return largest < FSDPCK_VERIFY_WINDOW_NBYTES ? largest : FSDPCK_VERIFY_WINDOW_NBYTES;
}

static int init_worker(struct verify_worker *w, uint64_t window, bool decodes, struct fsdpck_error *err)
{
    w->buffer = fsdpck_buffer_new(window + 2 * FSDPCK_PAGE_NBYTES);
    w->decoder = decodes ? fsdpck_decoder_new() : NULL;
    return w->buffer && (w->decoder || !decodes) ? 0 : fsdpck_error_nomem(err, window);
}

static int init_workers(struct verify_reader *rd, struct fsdpck_error *err)
{
    const struct fsdpck_options *opt = &rd->v->src->opt;
    uint64_t fit = opt->memory_nbytes / (FSDPCK_VERIFY_WINDOW_NBYTES + 2 * FSDPCK_VERIFY_ROW_NBYTES +
                                         2 * FSDPCK_PAGE_NBYTES + 6 * FSDPCK_BLOCK_NBYTES);
    uint64_t wanted = (uint64_t)opt->nthreads * FSDPCK_POOL_WAITING;
    rd->nworkers = wanted < fit ? (unsigned)wanted : fit ? (unsigned)fit : 1;
    rd->workers = calloc(rd->nworkers, sizeof *rd->workers);
    int rc = rd->workers ? 0 : fsdpck_error_nomem(err, rd->nworkers * sizeof *rd->workers);
    for (unsigned i = 0; !rc && i < rd->nworkers; i++)
        rc = init_worker(&rd->workers[i], window_nbytes(rd), rd->v->src->compressed, err);
    return rc;
}

static void free_reader(struct verify_reader *rd)
{
    for (unsigned i = 0; rd->workers && i < rd->nworkers; i++) {
        free(rd->workers[i].buffer);
        fsdpck_decoder_free(rd->workers[i].decoder);
    }
    for (uint32_t rank = 0; rd->envelopes && rank < rd->v->src->files.count; rank++)
        fsdpck_verify_envelope_free(&rd->envelopes[rank]);
    free(rd->workers);
    free(rd->envelopes);
    fsdpck_vec_free(&rd->spans);
    fsdpck_vec_free(&rd->windows);
    pthread_mutex_destroy(&rd->lock);
    pthread_cond_destroy(&rd->turned);
}

int fsdpck_verify_bytes(struct fsdpck_verifier *v, struct fsdpck_error *err)
{
    struct verify_reader rd = { .v = v,
                                .spans = FSDPCK_VEC(struct fsdpck_verify_span),
                                .windows = FSDPCK_VEC(struct fsdpck_verify_window),
                                .lock = PTHREAD_MUTEX_INITIALIZER,
                                .turned = PTHREAD_COND_INITIALIZER };
    rd.envelopes = calloc((size_t)v->src->files.count + 1, sizeof *rd.envelopes);
    int rc =
        rd.envelopes ? init_workers(&rd, err) : fsdpck_error_nomem(err, v->src->files.count * sizeof *rd.envelopes);
    if (!rc)
        rc = cut_files(&rd, err);
    if (!rc)
        rc = fsdpck_pool_run(rd.nworkers, rd.windows.count, check_window, &rd, v->src->opt.stop, err);
    v->result->read_nbytes += rd.read_nbytes;
    free_reader(&rd);
    return rc;
}
