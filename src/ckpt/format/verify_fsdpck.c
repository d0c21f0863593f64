/* Every byte of an fsdpck directory's shard files against its hash: tables, envelopes, payload blocks; and tables against the placement rule. Problems
 * are reported one by one, and the work goes on with what is not lost. */
#include "format/verify_impl.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/box.h"
#include "base/block_codec.h"
#include "engine/decode.h"
#include "engine/file_read.h"
#include "engine/files.h"
#include "base/buffer.h"
#include "base/ioutil.h"
#include "base/pool.h"

#define PIECE_NBYTES (4u << 20) /* a multiple of the hash block */

struct piece { /* of one payload, decoded */
    uint32_t rank;
    uint64_t entry, begin, end;
};

struct worker {
    uint8_t *buffer; /* a piece, and what alignment adds */
    struct fsdpck_decoder *decoder;
    uint8_t block[FSDPCK_BLOCK_NBYTES];
};

struct verifier {
    struct fsdpck_verifier common;
    struct fsdpck_source *src;
    struct fsdpck_vec pieces;
    struct worker *workers;
    unsigned nworkers;
    uint64_t *nchunks; /* of each file, that tensors claim */
    bool lost_count;   /* a tensor was not followed to its end: nchunks are too small */
    uint64_t done_nbytes, total_nbytes;
};

static struct fsdpck_index *index_of(const struct verifier *v) { return v->src->impl; }

void fsdpck_verifier_report(struct fsdpck_verifier *v, const struct fsdpck_problem *p)
{
    pthread_mutex_lock(&v->lock);
    v->result->nproblems++;
    v->report(v->ctx, p);
    pthread_mutex_unlock(&v->lock);
}

static void report_file(struct verifier *v, uint32_t rank, uint64_t offset, const char *tensor, const char *what)
{
    struct fsdpck_problem p = { .file = source_files(v->src)[rank].pub.name, .offset = offset, .rank = rank, .tensor = tensor, .what = what };
    fsdpck_verifier_report(&v->common, &p);
}

static int settle(struct verifier *v, int code, const struct fsdpck_error *e, uint32_t rank, struct fsdpck_error *err)
{
    if (fsdpck_is_system_error(code)) {
        if (err && err->code == 0)
            *err = *e;
        return code;
    }
    report_file(v, rank, e->has_offset ? e->offset : 0, e->tensor[0] ? e->tensor : NULL, e->message);
    return 0;
}

/* ---- tables and envelopes ---- */

static int by_payload(const void *a, const void *b)
{
    const struct fsdpck_table_entry *const *x = a, *const *y = b;
    return (*x)->payload < (*y)->payload ? -1 : (*x)->payload > (*y)->payload;
}

/* All bytes before the table that are in no payload, in file order. */
static int hash_gaps(struct verifier *v, uint32_t rank, const struct fsdpck_table *t, const struct fsdpck_table_entry **sorted,
                     struct fsdpck_hash128 *out, struct fsdpck_error *err)
{
    uint64_t table = ((const struct index_file *)index_of(v)->files.data + rank)->table, at = 0;
    struct fsdpck_hasher *h = fsdpck_hasher_new();
    uint8_t *buf = malloc(FSDPCK_BLOCK_NBYTES);
    int r = h && buf ? 0 : fsdpck_error_nomem(err, FSDPCK_BLOCK_NBYTES);
    for (uint64_t i = 0; r == 0 && i <= t->nentries; i++) {
        uint64_t stop = i < t->nentries ? sorted[i]->payload : table;
        while (r == 0 && at < stop) {
            uint64_t n = stop - at < FSDPCK_BLOCK_NBYTES ? stop - at : FSDPCK_BLOCK_NBYTES;
            r = fsdpck_files_read(v->src, rank, buf, n, at, err);
            if (r == 0)
                fsdpck_hasher_add(h, buf, n);
            at += n;
        }
        if (i < t->nentries)
            at = sorted[i]->payload + sorted[i]->nbytes;
    }
    if (r == 0)
        fsdpck_hasher_finish(h, out);
    free(buf);
    fsdpck_hasher_free(h);
    return r;
}

static int check_envelope(struct verifier *v, uint32_t rank, const struct fsdpck_table *t, struct fsdpck_error *err)
{
    const struct fsdpck_table_entry **sorted = malloc((t->nentries + 1) * sizeof *sorted);
    struct fsdpck_hash128 got;
    if (!sorted)
        return fsdpck_error_nomem(err, t->nentries * sizeof *sorted);
    for (uint64_t i = 0; i < t->nentries; i++)
        sorted[i] = &t->entries[i];
    qsort(sorted, t->nentries, sizeof *sorted, by_payload);
    int r = hash_gaps(v, rank, t, sorted, &got, err);
    free(sorted);
    if (r == 0 && !fsdpck_hash_equal(&got, &t->envelope))
        report_file(v, rank, 0, NULL, "bytes around the payloads (zip envelopes, padding) do not match their hash");
    return r;
}

static int add_pieces(struct verifier *v, uint32_t rank, const struct fsdpck_table *t, struct fsdpck_error *err)
{
    for (uint64_t i = 0; i < t->nentries; i++)
        for (uint64_t at = 0; at < t->entries[i].decoded; at += PIECE_NBYTES) {
            uint64_t left = t->entries[i].decoded - at;
            struct piece *p = fsdpck_vec_push(&v->pieces, err);
            if (!p)
                return FSDPCK_ERR_NOMEM;
            *p = (struct piece){ .rank = rank, .entry = i, .begin = at, .end = at + (left < PIECE_NBYTES ? left : PIECE_NBYTES) };
            v->total_nbytes += p->end - p->begin;
        }
    return 0;
}

/* Its tensors are looked for in the other files all the same. */
static const struct fsdpck_error unreadable = { .code = FSDPCK_ERR_DAMAGED, .message = "its chunk table cannot be read" };

static int check_file(struct verifier *v, uint32_t rank, struct fsdpck_error *err)
{
    const struct fsdpck_table *t;
    struct fsdpck_error e = { 0 };
    int r = fsdpck_index_table(v->src, rank, &t, &e);
    if (r != 0) {
        ((struct index_file *)index_of(v)->files.data + rank)->broken = &unreadable;
        return settle(v, r, &e, rank, err);
    }
    if (v->common.quick)
        return 0;
    r = check_envelope(v, rank, t, &e);
    if (r != 0)
        return settle(v, r, &e, rank, err);
    return add_pieces(v, rank, t, err);
}

/* ---- tables against the index ---- */

static int claim_extent(void *ctx, const struct fsdpck_extent *e, struct fsdpck_error *err)
{
    (void)err;
    ((struct verifier *)ctx)->nchunks[e->file]++;
    return 0;
}

static void report_tensor(struct verifier *v, const struct fsdpck_tensor *t, const struct fsdpck_error *e)
{
    struct fsdpck_problem p = { .file = "index.json", .rank = -1, .tensor = t->name, .what = e->message };
    for (uint32_t i = 0; i < v->src->files.count; i++)
        if (strcmp(source_files(v->src)[i].path, e->file) == 0) {
            p.file = source_files(v->src)[i].pub.name;
            p.rank = i;
        }
    fsdpck_verifier_report(&v->common, &p);
}

/* Where the rule, or the list of chunks, says that the tensor is, the tables must have it. That rule and list fill the tensor was checked before. */
static int check_tensor(struct verifier *v, size_t ordinal, struct fsdpck_error *err)
{
    static const uint64_t zeros[FSDPCK_MAX_DIMS];
    const struct fsdpck_tensor *t = &source_tensors(v->src)[ordinal];
    struct fsdpck_error e = { 0 };
    if (t->alias_of >= 0 || t->nelem == 0)
        return 0;
    int r = v->src->ops->extents(v->src, ordinal, zeros, t->shape, claim_extent, v, &e);
    if (fsdpck_is_system_error(r)) {
        *err = e;
        return r;
    }
    if (r != 0) {
        v->lost_count = true;
        report_tensor(v, t, &e);
    }
    return 0;
}

static int check_claims(struct verifier *v)
{
    const struct index_file *files = index_of(v)->files.data;
    for (uint32_t rank = 0; rank < v->src->files.count; rank++) {
        uint64_t nitems = 0, ntensors = 0;
        for (uint64_t i = 0; i < files[rank].loaded.nentries; i++)
            files[rank].loaded.entries[i].kind == FSDPCK_CHUNK_ITEM ? nitems++ : ntensors++;
        for (size_t i = 0; i < v->src->items.count; i++) {
            const struct source_item *it = &source_items(v->src)[i];
            uint64_t count, at = fsdpck_table_find(&files[rank].loaded, FSDPCK_CHUNK_ITEM, (uint32_t)i, &count);
            const struct fsdpck_table_entry *e = count == 1 ? &files[rank].loaded.entries[at] : NULL;
            if (it->file != rank || !files[rank].is_loaded)
                continue;
            if (!e || e->payload != it->offset || e->nbytes != it->pub.nbytes)
                report_file(v, rank, it->offset, it->pub.name, "the chunk table does not hold this item as index.json places it");
            nitems -= e != NULL && nitems > 0;
        }
        if (files[rank].is_loaded && (nitems || (ntensors != v->nchunks[rank] && !v->lost_count)))
            report_file(v, rank, files[rank].table, NULL, "the chunk table lists chunks that index.json does not know");
    }
    return 0;
}

/* ---- payloads ---- */

/* Decoded bytes [begin, end) of a payload are lost; `place` in the file, with as many bytes as are stored for them. */
static void damaged_block(struct verifier *v, const struct piece *p, const struct fsdpck_table *t, uint64_t begin, uint64_t end, uint64_t place,
                          uint64_t nbytes, const char *what)
{
    const struct fsdpck_table_entry *e = &t->entries[p->entry];
    struct fsdpck_problem problem = { .file = source_files(v->src)[p->rank].pub.name, .offset = place, .nbytes = nbytes,
                                      .rank = p->rank, .what = what };
    if (e->kind == FSDPCK_CHUNK_ITEM && e->ordinal < v->src->items.count) {
        problem.tensor = source_items(v->src)[e->ordinal].pub.name;
    } else if (e->kind == FSDPCK_CHUNK_TENSOR && e->ordinal < v->src->tensors.count) {
        const struct fsdpck_tensor *tensor = &source_tensors(v->src)[e->ordinal];
        const uint64_t *offset = t->dims + e->dims, *size = offset + e->ndim;
        uint64_t row = e->ndim && size[0] ? e->decoded / size[0] : 0;
        problem.tensor = tensor->name;
        problem.row_begin = row ? offset[0] + begin / row : 0;
        problem.row_end = row ? offset[0] + (end + row - 1) / row : 0;
    }
    fsdpck_verifier_report(&v->common, &problem);
}

static int check_blocks(struct verifier *v, const struct piece *p, const struct fsdpck_table *t, const uint8_t *data, struct fsdpck_error *err)
{
    struct fsdpck_hash128 want[PIECE_NBYTES / FSDPCK_BLOCK_NBYTES], got;
    uint64_t first = t->entries[p->entry].first_hash + p->begin / FSDPCK_BLOCK_NBYTES, n = fsdpck_nblocks(p->end - p->begin);
    int r = fsdpck_files_read(v->src, p->rank, want, n * sizeof *want, t->hashes + first * sizeof *want, err);
    for (uint64_t i = 0; r == 0 && i < n; i++) {
        uint64_t at = p->begin + i * FSDPCK_BLOCK_NBYTES, stop = at + FSDPCK_BLOCK_NBYTES < p->end ? at + FSDPCK_BLOCK_NBYTES : p->end;
        fsdpck_hash(data + (at - p->begin), stop - at, &got);
        if (!fsdpck_hash_equal(&got, &want[i]))
            damaged_block(v, p, t, at, stop, t->entries[p->entry].payload + at, stop - at, "block hash differs");
    }
    return r;
}

static int check_stored(struct verifier *v, const struct piece *p, const struct fsdpck_table *t, unsigned worker, struct fsdpck_error *err)
{
    uint8_t *data;
    int r = fsdpck_file_read(v->src, p->rank, t->entries[p->entry].payload + p->begin, p->end - p->begin, v->workers[worker].buffer, &data, err);
    return r == 0 ? check_blocks(v, p, t, data, err) : r;
}

/* Blocks that are what was written, and yet decode to nothing, were written by someone with other things in mind. */
static void check_record(struct verifier *v, const struct piece *p, const struct fsdpck_table *t, uint64_t number, const struct fsdpck_extent *x,
                         const struct fsdpck_record *record, const uint8_t *stored, struct worker *w)
{
    const struct fsdpck_table_entry *e = &t->entries[p->entry];
    uint64_t at = number * FSDPCK_BLOCK_NBYTES;
    uint32_t n = fsdpck_block_decoded(x, number);
    const char *what = NULL;
    struct fsdpck_hash128 got;
    fsdpck_hash(stored, record->nbytes, &got);
    if (!fsdpck_hash_equal(&got, &record->hash))
        what = "block hash differs";
    else if (e->ordinal < v->src->tensors.count) {
        struct fsdpck_planes planes = fsdpck_planes_of(source_tensors(v->src)[e->ordinal].dtype);
        if (!fsdpck_block_decode(w->decoder, &planes, stored, record->nbytes, w->block, n))
            what = "a compressed block does not decode";
    }
    if (what)
        damaged_block(v, p, t, at, at + n, e->payload + record->begin, record->nbytes, what);
}

static int check_compressed(struct verifier *v, const struct piece *p, const struct fsdpck_table *t, unsigned worker, struct fsdpck_error *err)
{
    const struct fsdpck_table_entry *e = &t->entries[p->entry];
    struct worker *w = &v->workers[worker];
    const struct fsdpck_extent x = { .file = p->rank, .payload = e->payload, .payload_nbytes = e->decoded, .stored_nbytes = e->nbytes,
                                     .hashes = t->hashes + 16 * e->first_hash };
    struct fsdpck_record records[PIECE_NBYTES / FSDPCK_BLOCK_NBYTES];
    uint64_t first = p->begin / FSDPCK_BLOCK_NBYTES, n = fsdpck_nblocks(p->end - p->begin);
    uint8_t *data;
    int r = fsdpck_records_read(v->src, &x, first, n, records, err);
    if (r == 0)
        r = fsdpck_file_read(v->src, p->rank, e->payload + records[0].begin, records[n - 1].begin + records[n - 1].nbytes - records[0].begin, w->buffer,
                             &data, err);
    for (uint64_t i = 0; r == 0 && i < n; i++)
        check_record(v, p, t, first + i, &x, &records[i], data + (records[i].begin - records[0].begin), w);
    return r;
}

static int check_piece(void *ctx, size_t number, unsigned worker, struct fsdpck_error *err)
{
    struct verifier *v = ctx;
    const struct piece *p = (const struct piece *)v->pieces.data + number;
    const struct fsdpck_table *t;
    struct fsdpck_error e = { 0 };
    int r = fsdpck_index_table(v->src, p->rank, &t, &e);
    if (r == 0 && t->entries[p->entry].codec == FSDPCK_CODEC_PLANES)
        r = check_compressed(v, p, t, worker, &e);
    else if (r == 0)
        r = check_stored(v, p, t, worker, &e);
    if (r != 0)
        return settle(v, r, &e, p->rank, err);
    pthread_mutex_lock(&v->common.lock);
    v->done_nbytes += p->end - p->begin;
    v->common.result->nblocks += fsdpck_nblocks(p->end - p->begin);
    if (v->src->opt.progress)
        v->src->opt.progress(v->src->opt.ctx, v->done_nbytes, v->total_nbytes);
    pthread_mutex_unlock(&v->common.lock);
    return 0;
}

static int init_worker(struct worker *w, bool decodes, struct fsdpck_error *err)
{
    w->buffer = fsdpck_buffer_new(PIECE_NBYTES + 2 * FSDPCK_PAGE_NBYTES);
    w->decoder = decodes ? fsdpck_decoder_new() : NULL;
    return w->buffer && (w->decoder || !decodes) ? 0 : fsdpck_error_nomem(err, PIECE_NBYTES);
}

static int check_pieces(struct verifier *v, struct fsdpck_error *err)
{
    size_t nbytes = PIECE_NBYTES + 2 * FSDPCK_PAGE_NBYTES + 6 * FSDPCK_BLOCK_NBYTES;
    uint64_t fit = v->src->opt.memory_nbytes / nbytes;
    uint64_t wanted = (uint64_t)v->src->opt.nthreads * FSDPCK_POOL_WAITING;
    v->nworkers = wanted < fit ? (unsigned)wanted : fit ? (unsigned)fit : 1;
    v->workers = calloc(v->nworkers, sizeof *v->workers);
    int r = v->workers ? 0 : fsdpck_error_nomem(err, v->nworkers * sizeof *v->workers);
    for (unsigned i = 0; r == 0 && i < v->nworkers; i++)
        r = init_worker(&v->workers[i], v->src->compressed, err);
    if (r == 0)
        r = fsdpck_pool_run(v->nworkers, v->pieces.count, check_piece, v, v->src->opt.stop, err);
    for (unsigned i = 0; v->workers && i < v->nworkers; i++) {
        free(v->workers[i].buffer);
        fsdpck_decoder_free(v->workers[i].decoder);
    }
    free(v->workers);
    v->common.result->read_nbytes += v->done_nbytes;
    return r;
}

/* ---- the whole ---- */

static int verify(struct verifier *v, struct fsdpck_error *err)
{
    int r = 0;
    v->nchunks = calloc(v->src->files.count + 1, sizeof *v->nchunks);
    if (!v->nchunks)
        return fsdpck_error_nomem(err, v->src->files.count * sizeof *v->nchunks);
    for (uint32_t rank = 0; r == 0 && rank < v->src->files.count; rank++)
        r = check_file(v, rank, err);
    for (size_t i = 0; r == 0 && i < v->src->tensors.count; i++)
        r = check_tensor(v, i, err);
    if (r == 0)
        r = check_claims(v);
    if (r == 0)
        r = fsdpck_verify_others(&v->common, err);
    return r == 0 && !v->common.quick ? check_pieces(v, err) : r;
}

int fsdpck_verify_fsdpck(struct fsdpck_source *src, bool quick, fsdpck_problem_fn report_fn, void *report_ctx,
                         struct fsdpck_verify_result *result, struct fsdpck_error *err)
{
    struct fsdpck_error own = { 0 };
    struct verifier v = { .common = { .src = src, .quick = quick, .report = report_fn, .ctx = report_ctx, .result = result,
                                      .lock = PTHREAD_MUTEX_INITIALIZER },
                          .src = src, .pieces = FSDPCK_VEC(struct piece) };
    int r = verify(&v, err ? err : &own);
    result->hashed = r == 0 && !quick;
    fsdpck_vec_free(&v.pieces);
    free(v.nchunks);
    pthread_mutex_destroy(&v.common.lock);
    return r;
}
