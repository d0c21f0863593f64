/* SPDX-License-Identifier: Apache-2.0 */
/* Reads every byte of shard files once, in large windows, in several threads. Checks payload blocks against their
 * hashes, and the bytes between the payloads against the file's envelope hash. That hash needs its bytes in file order.
 * A window that is done before its turn stores its gaps for the thread whose turn comes first, or waits if too much is
 * stored. Windows start in order, so a window waits only for running windows. Knows nothing of the index. */
#include "format/verify_impl.h"

#include <stdlib.h>
#include <string.h>

#include "base/block_codec.h"
#include "base/buffer.h"
#include "base/pool.h"
#include "base/stop.h"
#include "engine/decode.h"
#include "engine/file_read.h"
#include "engine/files.h"
#include "format/verify_spans.h"

#define DEFERRED_MAX_NBYTES (1u << 20) /* limit for gaps that wait for their turn */
#define WINDOW_BLOCKS       (FSDPCK_VERIFY_WINDOW_NBYTES / FSDPCK_BLOCK_NBYTES)

struct worker {
    uint8_t *buffer; /* a window, plus alignment */
    struct fsdpck_decoder *decoder;
    uint8_t block[FSDPCK_BLOCK_NBYTES];
};

struct deferred_gaps { /* gaps of a window that was done before its turn */
    struct deferred_gaps *next;
    uint32_t turn;
    uint64_t nbytes;
    uint8_t bytes[];
};

struct envelope {                 /* the envelope of a file */
    struct fsdpck_hasher *hasher; /* owned by the window whose turn it is */
    struct deferred_gaps *left;
    uint32_t turn, nturns; /* the current turn, and their number */
    bool lost;             /* part of it could not be read, which was reported */
};

struct reader {
    struct fsdpck_verifier *v;
    struct fsdpck_vec spans, windows;
    struct envelope *envelopes; /* (files) */
    struct worker *workers;
    unsigned nworkers;
    pthread_mutex_t lock; /* guards turns and deferred gaps */
    pthread_cond_t turned;
    unsigned nwaiting;
    uint64_t deferred_nbytes;
    uint64_t done_nbytes, total_nbytes; /* of decoded payloads */
    uint64_t read_nbytes;               /* of payloads, as stored */
};

struct window { /* the window being read */
    struct reader *rd;
    struct worker *w;
    uint32_t rank, turn;
    const struct fsdpck_table *t;
    const struct fsdpck_verify_span *spans;
    size_t nspans;
};

static const struct fsdpck_table_entry *entry_of(const struct window *w, const struct fsdpck_verify_span *s)
{
    return s->entry == FSDPCK_NO_ENTRY ? NULL : &w->t->entries[s->entry];
}

/* Returns the file offset of a span of stored bytes. */
static uint64_t position_of(const struct window *w, const struct fsdpck_verify_span *s)
{
    const struct fsdpck_table_entry *e = entry_of(w, s);
    return s->begin + (e ? e->payload : 0);
}

/* ---- payloads ---- */

/* Reports that decoded bytes [begin, end) of a payload are damaged; `place`: file offset of their nbytes stored
 * bytes. */
static void damaged_block(const struct window *w, const struct fsdpck_table_entry *e, uint64_t begin, uint64_t end,
                          uint64_t place, uint64_t nbytes, const char *what)
{
    const struct fsdpck_source *src = w->rd->v->src;
    struct fsdpck_problem problem = {
        .file = source_files(src)[w->rank].pub.name, .offset = place, .nbytes = nbytes, .rank = w->rank, .what = what
    };
    if (e->kind == FSDPCK_CHUNK_ITEM && e->ordinal < src->items.count) {
        problem.tensor = source_items(src)[e->ordinal].pub.name;
    } else if (e->kind == FSDPCK_CHUNK_TENSOR && e->ordinal < src->tensors.count) {
        const uint64_t *offset = w->t->dims + e->dims, *size = offset + e->ndim;
        uint64_t row = e->ndim && size[0] ? e->decoded / size[0] : 0;
        problem.tensor = source_tensors(src)[e->ordinal].name;
        fsdpck_verify_contents_suspect(w->rd->v->contents, e->ordinal);
        problem.row_begin = row ? offset[0] + begin / row : 0;
        problem.row_end = row ? offset[0] + (end + row - 1) / row : 0;
    }
    fsdpck_verifier_report(w->rd->v, &problem);
}

static int check_blocks(const struct window *w, const struct fsdpck_verify_span *s, const uint8_t *data,
                        struct fsdpck_error *err)
{
    const struct fsdpck_table_entry *e = entry_of(w, s);
    struct fsdpck_hash128 want[WINDOW_BLOCKS], got;
    uint64_t first = e->first_hash + s->begin / FSDPCK_BLOCK_NBYTES, n = fsdpck_nblocks(s->end - s->begin);
    int rc =
        fsdpck_files_read(w->rd->v->src, w->rank, want, n * sizeof *want, w->t->hashes + first * sizeof *want, err);
    for (uint64_t i = 0; !rc && i < n; i++) {
        uint64_t at = s->begin + i * FSDPCK_BLOCK_NBYTES,
                 stop = at + FSDPCK_BLOCK_NBYTES < s->end ? at + FSDPCK_BLOCK_NBYTES : s->end;
        fsdpck_hash(data + (at - s->begin), stop - at, &got);
        if (!fsdpck_hash_equal(&got, &want[i]))
            damaged_block(w, e, at, stop, e->payload + at, stop - at, "block hash differs");
    }
    if (!rc && e->kind == FSDPCK_CHUNK_TENSOR)
        fsdpck_verify_contents_add(w->rd->v->contents, w->rank, w->t, e, s->begin, s->end, data);
    return rc;
}

/* A block whose hash matches but which does not decode was forged. */
static void check_record(const struct window *w, const struct fsdpck_table_entry *e, uint64_t number,
                         const struct fsdpck_extent *x, const struct fsdpck_record *record, const uint8_t *stored)
{
    const struct fsdpck_source *src = w->rd->v->src;
    uint64_t at = number * FSDPCK_BLOCK_NBYTES;
    uint32_t n = fsdpck_block_decoded(x, number);
    const char *what = NULL;
    struct fsdpck_hash128 got;
    fsdpck_hash(stored, record->nbytes, &got);
    if (!fsdpck_hash_equal(&got, &record->hash))
        what = "block hash differs";
    else if (e->ordinal < src->tensors.count) {
        struct fsdpck_planes planes = fsdpck_planes_of(source_tensors(src)[e->ordinal].dtype);
        if (!fsdpck_block_decode(w->w->decoder, &planes, stored, record->nbytes, w->w->block, n))
            what = "a compressed block does not decode";
    }
    if (what)
        damaged_block(w, e, at, at + n, e->payload + record->begin, record->nbytes, what);
    else if (e->ordinal < src->tensors.count)
        fsdpck_verify_contents_add(w->rd->v->contents, w->rank, w->t, e, at, at + n, w->w->block);
}

static int check_compressed(const struct window *w, struct fsdpck_error *err)
{
    const struct fsdpck_table_entry *e = entry_of(w, w->spans);
    const struct fsdpck_extent x = { .file = w->rank,
                                     .payload = e->payload,
                                     .payload_nbytes = e->decoded,
                                     .stored_nbytes = e->nbytes,
                                     .hashes = w->t->hashes + 16 * e->first_hash };
    struct fsdpck_record records[WINDOW_BLOCKS];
    uint64_t first = w->spans->begin / FSDPCK_BLOCK_NBYTES, n = fsdpck_nblocks(w->spans->end - w->spans->begin);
    uint8_t *data;
    int rc = fsdpck_records_read(w->rd->v->src, &x, first, n, records, err);
    if (!rc)
        rc =
            fsdpck_file_read(w->rd->v->src, w->rank, e->payload + records[0].begin,
                             records[n - 1].begin + records[n - 1].nbytes - records[0].begin, w->w->buffer, &data, err);
    for (uint64_t i = 0; !rc && i < n; i++)
        check_record(w, e, first + i, &x, &records[i], data + (records[i].begin - records[0].begin));
    if (!rc)
        __atomic_fetch_add(&w->rd->read_nbytes, records[n - 1].begin + records[n - 1].nbytes - records[0].begin,
                           __ATOMIC_RELAXED);
    return rc;
}

/* ---- envelopes ---- */

static bool is_long_gap(const struct window *w)
{
    return !entry_of(w, w->spans) && w->spans->end - w->spans->begin > FSDPCK_VERIFY_WINDOW_NBYTES;
}

static int hash_long_gap(const struct window *w, struct fsdpck_error *err)
{
    const struct fsdpck_source *src = w->rd->v->src;
    int rc = 0;
    for (uint64_t at = w->spans->begin; !rc && at < w->spans->end; at += FSDPCK_VERIFY_WINDOW_NBYTES) {
        uint64_t left = w->spans->end - at, n = left < FSDPCK_VERIFY_WINDOW_NBYTES ? left : FSDPCK_VERIFY_WINDOW_NBYTES;
        uint8_t *data;
        if (fsdpck_stop_asked(src->opt.stop))
            return fsdpck_error_set(err, FSDPCK_ERR_STOPPED, NULL, "stopped");
        rc = fsdpck_file_read(w->rd->v->src, w->rank, at, n, w->w->buffer, &data, err);
        if (!rc)
            fsdpck_hasher_add(w->rd->envelopes[w->rank].hasher, data, n);
    }
    return rc;
}

/* Copies the gaps to `out`, or adds them to a hash; either may be NULL, and with both NULL it only measures. Returns
 * their size. */
static uint64_t take_gaps(const struct window *w, const uint8_t *data, uint8_t *out, struct fsdpck_hasher *h)
{
    uint64_t begin = position_of(w, w->spans), done = 0;
    for (size_t i = 0; i < w->nspans; i++) {
        uint64_t n = entry_of(w, &w->spans[i]) ? 0 : w->spans[i].end - w->spans[i].begin;
        if (n && out)
            memcpy(out + done, data + (w->spans[i].begin - begin), n);
        if (n && h)
            fsdpck_hasher_add(h, data + (w->spans[i].begin - begin), n);
        done += n;
    }
    return done;
}

/* Called with the lock held. Stores the gaps for their turn. data NULL: only the turn. False: no room. */
static bool defer_gaps(const struct window *w, const uint8_t *data)
{
    struct envelope *env = &w->rd->envelopes[w->rank];
    uint64_t n = data ? take_gaps(w, data, NULL, NULL) : 0;
    struct deferred_gaps *l =
        w->rd->deferred_nbytes + n + sizeof *l > DEFERRED_MAX_NBYTES ? NULL : malloc(sizeof *l + n);
    if (!l)
        return false;
    *l = (struct deferred_gaps){ .next = env->left, .turn = w->turn, .nbytes = n };
    if (data)
        take_gaps(w, data, l->bytes, NULL);
    env->left = l;
    w->rd->deferred_nbytes += sizeof *l + n;
    return true;
}

/* Called with the lock held: hashes the deferred gaps of the windows that follow. */
static void hash_deferred(struct reader *rd, struct envelope *env)
{
    for (struct deferred_gaps **p = &env->left; *p;) {
        struct deferred_gaps *l = *p;
        if (l->turn != env->turn) {
            p = &l->next;
            continue;
        }
        *p = l->next;
        fsdpck_hasher_add(env->hasher, l->bytes, l->nbytes);
        rd->deferred_nbytes -= sizeof *l + l->nbytes;
        free(l);
        env->turn++;
        p = &env->left; /* the next one may be earlier in the list */
    }
}

/* Called with the lock held. */
static int wait_for_turn(const struct window *w, struct fsdpck_error *err)
{
    struct reader *rd = w->rd;
    int rc = 0;
    rd->nwaiting++;
    while (!rc && rd->envelopes[w->rank].turn != w->turn) {
        if (fsdpck_stop_asked(rd->v->src->opt.stop))
            rc = fsdpck_error_set(err, FSDPCK_ERR_STOPPED, NULL, "stopped");
        else
            fsdpck_pool_wait_a_little(&rd->turned, &rd->lock);
    }
    rd->nwaiting--;
    return rc;
}

/* *mine: whether it is the window's turn; if not, its gaps were deferred. data NULL: no gaps to defer. */
static int ask_for_turn(const struct window *w, const uint8_t *data, bool *mine, struct fsdpck_error *err)
{
    struct envelope *env = &w->rd->envelopes[w->rank];
    int rc = 0;
    pthread_mutex_lock(&w->rd->lock);
    *mine = env->turn == w->turn;
    if (!*mine && (is_long_gap(w) || !defer_gaps(w, data))) {
        rc = wait_for_turn(w, err);
        *mine = !rc;
    }
    pthread_mutex_unlock(&w->rd->lock);
    return rc;
}

static void end_envelope(const struct window *w, struct envelope *env)
{
    struct fsdpck_hash128 got;
    fsdpck_hasher_finish(env->hasher, &got);
    if (!env->lost && !fsdpck_hash_equal(&got, &w->t->envelope))
        fsdpck_verifier_report_file(w->rd->v, w->rank, 0, NULL,
                                    "bytes around the payloads (zip envelopes, padding) do not match their hash");
}

static void end_turn(const struct window *w)
{
    struct reader *rd = w->rd;
    struct envelope *env = &rd->envelopes[w->rank];
    pthread_mutex_lock(&rd->lock);
    env->turn++;
    hash_deferred(rd, env);
    bool last = env->turn == env->nturns;
    if (rd->nwaiting)
        pthread_cond_broadcast(&rd->turned);
    pthread_mutex_unlock(&rd->lock);
    if (last)
        end_envelope(w, env);
}

static void lose_envelope(const struct window *w)
{
    pthread_mutex_lock(&w->rd->lock);
    w->rd->envelopes[w->rank].lost = true;
    pthread_mutex_unlock(&w->rd->lock);
}

/* code: the result of reading the window. An unreadable window takes its turn too; otherwise the next ones would wait
 * forever. */
static int take_turn(const struct window *w, const uint8_t *data, int code, struct fsdpck_error *err)
{
    bool mine;
    if (code != 0)
        lose_envelope(w);
    int rc = ask_for_turn(w, code == 0 ? data : NULL, &mine, err);
    if (rc || !mine)
        return rc ? rc : code;
    if (code == 0 && is_long_gap(w))
        code = hash_long_gap(w, err);
    else if (code == 0)
        take_gaps(w, data, NULL, w->rd->envelopes[w->rank].hasher);
    if (code != 0)
        lose_envelope(w);
    end_turn(w);
    return code;
}

/* ---- windows ---- */

static int read_window(const struct window *w, uint8_t **data, struct fsdpck_error *err)
{
    const struct fsdpck_verify_span *last = &w->spans[w->nspans - 1];
    uint64_t begin = position_of(w, w->spans), end = position_of(w, last) + (last->end - last->begin);
    int rc = fsdpck_file_read(w->rd->v->src, w->rank, begin, end - begin, w->w->buffer, data, err);
    for (size_t i = 0; !rc && i < w->nspans; i++)
        if (entry_of(w, &w->spans[i]))
            rc = check_blocks(w, &w->spans[i], *data + (position_of(w, &w->spans[i]) - begin), err);
    return rc;
}

static int check_bytes(const struct window *w, struct fsdpck_error *err)
{
    const struct fsdpck_table_entry *e = entry_of(w, w->spans);
    uint8_t *data = NULL;
    int rc = 0;
    if (e && e->codec == FSDPCK_CODEC_PLANES)
        rc = check_compressed(w, err);
    else if (!is_long_gap(w))
        rc = read_window(w, &data, err);
    return w->turn == FSDPCK_NO_TURN ? rc : take_turn(w, data, rc, err);
}

static void count(const struct window *w)
{
    struct fsdpck_verifier *v = w->rd->v;
    pthread_mutex_lock(&v->lock);
    for (size_t i = 0; i < w->nspans; i++) {
        uint64_t nbytes = entry_of(w, &w->spans[i]) ? w->spans[i].end - w->spans[i].begin : 0;
        w->rd->done_nbytes += nbytes;
        if (nbytes && entry_of(w, &w->spans[i])->codec == FSDPCK_CODEC_STORED)
            __atomic_fetch_add(&w->rd->read_nbytes, nbytes, __ATOMIC_RELAXED);
        v->result->nblocks += fsdpck_nblocks(nbytes);
    }
    if (v->src->opt.progress)
        v->src->opt.progress(v->src->opt.ctx, w->rd->done_nbytes, w->rd->total_nbytes);
    pthread_mutex_unlock(&v->lock);
}

static void suspect_all(const struct window *w)
{
    for (size_t i = 0; w->t && i < w->nspans; i++) {
        const struct fsdpck_table_entry *e = entry_of(w, &w->spans[i]);
        if (e && e->kind == FSDPCK_CHUNK_TENSOR && e->ordinal < w->rd->v->src->tensors.count)
            fsdpck_verify_contents_suspect(w->rd->v->contents, e->ordinal);
    }
}

static int check_window(void *ctx, size_t number, unsigned worker, struct fsdpck_error *err)
{
    struct reader *rd = ctx;
    const struct fsdpck_verify_window *window = (const struct fsdpck_verify_window *)rd->windows.data + number;
    size_t end = number + 1 < rd->windows.count ? window[1].first : rd->spans.count;
    struct window w = { .rd = rd,
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
static bool seems_cached(struct reader *rd, uint32_t rank, uint64_t nbytes)
{
    return nbytes > FSDPCK_VERIFY_CACHED_NBYTES &&
           fsdpck_file_read_cached(rd->v->src, rank, nbytes / 2, FSDPCK_VERIFY_CACHED_NBYTES / 2, rd->workers->buffer);
}

static int cut_file(struct reader *rd, uint32_t rank, const struct index_file *file, struct fsdpck_error *err)
{
    uint64_t at_once = seems_cached(rd, rank, file->table) ? FSDPCK_VERIFY_CACHED_NBYTES : FSDPCK_VERIFY_WINDOW_NBYTES;
    int rc = fsdpck_verify_cut(rank, &file->loaded, file->table, at_once, &rd->spans, &rd->windows,
                               &rd->envelopes[rank].nturns, err);
    for (uint64_t i = 0; i < file->loaded.nentries; i++)
        rd->total_nbytes += file->loaded.entries[i].decoded;
    return !rc && !(rd->envelopes[rank].hasher = fsdpck_hasher_new()) ? fsdpck_error_nomem(err, 0) : rc;
}

static int cut_files(struct reader *rd, struct fsdpck_error *err)
{
    const struct fsdpck_index *index = rd->v->src->impl;
    const struct index_file *files = index->files.data;
    int rc = 0;
    for (uint32_t rank = 0; !rc && rank < rd->v->src->files.count; rank++)
        if (files[rank].is_loaded)
            rc = cut_file(rd, rank, &files[rank], err);
    return rc;
}

static int init_worker(struct worker *w, bool decodes, struct fsdpck_error *err)
{
    w->buffer = fsdpck_buffer_new(FSDPCK_VERIFY_WINDOW_NBYTES + 2 * FSDPCK_PAGE_NBYTES);
    w->decoder = decodes ? fsdpck_decoder_new() : NULL;
    return w->buffer && (w->decoder || !decodes) ? 0 : fsdpck_error_nomem(err, FSDPCK_VERIFY_WINDOW_NBYTES);
}

static int init_workers(struct reader *rd, struct fsdpck_error *err)
{
    const struct fsdpck_options *opt = &rd->v->src->opt;
    uint64_t fit = opt->memory_nbytes / (FSDPCK_VERIFY_WINDOW_NBYTES + 2 * FSDPCK_VERIFY_ROW_NBYTES +
                                         2 * FSDPCK_PAGE_NBYTES + 6 * FSDPCK_BLOCK_NBYTES);
    uint64_t wanted = (uint64_t)opt->nthreads * FSDPCK_POOL_WAITING;
    rd->nworkers = wanted < fit ? (unsigned)wanted : fit ? (unsigned)fit : 1;
    rd->workers = calloc(rd->nworkers, sizeof *rd->workers);
    int rc = rd->workers ? 0 : fsdpck_error_nomem(err, rd->nworkers * sizeof *rd->workers);
    for (unsigned i = 0; !rc && i < rd->nworkers; i++)
        rc = init_worker(&rd->workers[i], rd->v->src->compressed, err);
    return rc;
}

static void free_envelope(struct envelope *env)
{
    for (struct deferred_gaps *l = env->left, *next; l; l = next) { /* left after an error */
        next = l->next;
        free(l);
    }
    fsdpck_hasher_free(env->hasher);
}

static void free_reader(struct reader *rd)
{
    for (unsigned i = 0; rd->workers && i < rd->nworkers; i++) {
        free(rd->workers[i].buffer);
        fsdpck_decoder_free(rd->workers[i].decoder);
    }
    for (uint32_t rank = 0; rd->envelopes && rank < rd->v->src->files.count; rank++)
        free_envelope(&rd->envelopes[rank]);
    free(rd->workers);
    free(rd->envelopes);
    fsdpck_vec_free(&rd->spans);
    fsdpck_vec_free(&rd->windows);
    pthread_mutex_destroy(&rd->lock);
    pthread_cond_destroy(&rd->turned);
}

int fsdpck_verify_bytes(struct fsdpck_verifier *v, struct fsdpck_error *err)
{
    struct reader rd = { .v = v,
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
