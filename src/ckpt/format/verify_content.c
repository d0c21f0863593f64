/* SPDX-License-Identifier: Apache-2.0 */
/* Checks content ids (FORMAT.md section 4). Hashes rows while the blocks that contain them are read; a row that two
 * windows share waits for its other part. Tensors that are split inside rows (columns), or have long rows, are read
 * again, in order. */
#include "format/verify_impl.h"

#include <stdlib.h>
#include <string.h>

#include "base/stop.h"
#include "engine/fetch.h"
#include "tensor/rows.h"

#define PIECE_NBYTES (4u << 20)

struct fragment { /* part of a row */
    struct fragment *next;
    uint64_t begin, end; /* bytes of the payload */
    uint8_t bytes[];
};

struct chunk_content {
    struct fsdpck_content sum;
    uint64_t nrows; /* rows in the sum */
    struct fragment *fragments;
};

struct tensor_content {
    struct fsdpck_content sum;
    uint64_t nbytes; /* size of its chunks in the readable files */
    bool unknown;    /* some rows of a chunk were not read */
    bool suspect;    /* another problem with it was reported */
};

struct fsdpck_verify_contents {
    struct fsdpck_verifier *v;
    struct chunk_content **chunks;  /* (files), each (entries of its table); NULL: not read */
    struct tensor_content *tensors; /* (tensors) */
    struct fsdpck_hasher *hasher;   /* for rows in fragments */
    pthread_mutex_t lock;
};

static const struct index_file *files_of(const struct fsdpck_verify_contents *c)
{
    return ((const struct fsdpck_index *)c->v->src->impl)->files.data;
}

int fsdpck_verify_contents_new(struct fsdpck_verifier *v, struct fsdpck_verify_contents **out, struct fsdpck_error *err)
{
    const size_t nfiles = v->src->files.count;
    struct fsdpck_verify_contents *c = *out = calloc(1, sizeof *c);
    if (!c)
        return fsdpck_error_nomem(err, sizeof *c);
    c->v = v;
    pthread_mutex_init(&c->lock, NULL);
    c->chunks = calloc(nfiles + 1, sizeof *c->chunks);
    c->tensors = calloc(v->src->tensors.count + 1, sizeof *c->tensors);
    c->hasher = fsdpck_hasher_new();
    bool ok = c->chunks && c->tensors && c->hasher;
    for (size_t i = 0; ok && i < nfiles; i++) {
        const struct index_file *f = &files_of(c)[i];
        ok = !f->is_loaded || (c->chunks[i] = calloc(f->loaded.nentries + 1, sizeof *c->chunks[i]));
    }
    return ok ? 0 : fsdpck_error_nomem(err, v->src->tensors.count * sizeof *c->tensors);
}

void fsdpck_verify_contents_free(struct fsdpck_verify_contents *c)
{
    if (!c)
        return;
    for (size_t i = 0; c->chunks && i < c->v->src->files.count; i++) {
        for (uint64_t k = 0; c->chunks[i] && k < files_of(c)[i].loaded.nentries; k++)
            for (struct fragment *f = c->chunks[i][k].fragments, *next; f; f = next) {
                next = f->next;
                free(f);
            }
        free(c->chunks[i]);
    }
    free(c->chunks);
    free(c->tensors);
    fsdpck_hasher_free(c->hasher);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

void fsdpck_verify_contents_suspect(struct fsdpck_verify_contents *c, size_t tensor)
{
    pthread_mutex_lock(&c->lock);
    c->tensors[tensor].suspect = true;
    pthread_mutex_unlock(&c->lock);
}

/* ---- rows ---- */

/* Returns the tensor of the entry if the chunk consists of whole rows, else NULL. */
static const struct fsdpck_tensor *whole_rows(const struct fsdpck_verify_contents *c, const struct fsdpck_table *t,
                                              const struct fsdpck_table_entry *e)
{
    const struct fsdpck_source *src = c->v->src;
    const struct fsdpck_tensor *tensor =
        e->kind == FSDPCK_CHUNK_TENSOR && e->ordinal < src->tensors.count ? &source_tensors(src)[e->ordinal] : NULL;
    const uint64_t *size = t->dims + e->dims + e->ndim;
    if (!tensor || e->ndim != tensor->ndim || (e->ndim && (!size[0] || e->decoded % size[0])))
        return NULL;
    for (uint32_t d = 1; d < e->ndim; d++)
        if (size[d] != tensor->shape[d])
            return NULL;
    return tensor;
}

static uint64_t row_nbytes(const struct fsdpck_table *t, const struct fsdpck_table_entry *e)
{
    return e->ndim ? e->decoded / t->dims[e->dims + e->ndim] : e->decoded;
}
static uint64_t nrows(const struct fsdpck_table *t, const struct fsdpck_table_entry *e)
{
    return e->ndim ? t->dims[e->dims + e->ndim] : 1;
}
static uint64_t first_row(const struct fsdpck_table *t, const struct fsdpck_table_entry *e)
{
    return e->ndim ? t->dims[e->dims] : 0;
}

/* Called with the lock held: hashes the row if all of its fragments are present. */
static void join(struct fsdpck_verify_contents *c, struct chunk_content *chunk, uint64_t row, uint64_t nbytes,
                 uint64_t number)
{
    const uint64_t begin = row * nbytes, end = begin + nbytes;
    uint64_t have = 0;
    for (const struct fragment *f = chunk->fragments; f; f = f->next)
        have += f->begin >= begin && f->end <= end ? f->end - f->begin : 0;
    if (have != nbytes)
        return;
    fsdpck_hasher_row_begin(c->hasher, number);
    for (uint64_t at = begin; at < end;)
        for (struct fragment **p = &chunk->fragments, *f; (f = *p); p = &f->next)
            if (f->begin == at) {
                fsdpck_hasher_add(c->hasher, f->bytes, f->end - f->begin);
                at = f->end;
                *p = f->next;
                free(f);
                break;
            }
    fsdpck_hasher_row_end(c->hasher, &chunk->sum);
    chunk->nrows++;
}

/* Keeps this window's part of a row; other windows have the rest. If out of memory, the row stays unknown, and the
 * tensor is read again. */
static void keep(struct fsdpck_verify_contents *c, struct chunk_content *chunk, uint64_t begin, uint64_t end,
                 const uint8_t *data, uint64_t nbytes, uint64_t first)
{
    struct fragment *f = malloc(sizeof *f + (end - begin));
    if (!f)
        return;
    *f = (struct fragment){ .begin = begin, .end = end };
    memcpy(f->bytes, data, end - begin);
    pthread_mutex_lock(&c->lock);
    f->next = chunk->fragments;
    chunk->fragments = f;
    join(c, chunk, begin / nbytes, nbytes, first + begin / nbytes);
    pthread_mutex_unlock(&c->lock);
}

void fsdpck_verify_contents_add(struct fsdpck_verify_contents *c, uint32_t rank, const struct fsdpck_table *t,
                                const struct fsdpck_table_entry *e, uint64_t begin, uint64_t end, const uint8_t *data)
{
    struct chunk_content *chunk = &c->chunks[rank][e - t->entries];
    struct fsdpck_content sum = { 0 };
    if (!whole_rows(c, t, e) || row_nbytes(t, e) > FSDPCK_VERIFY_ROW_NBYTES)
        return;
    const uint64_t nbytes = row_nbytes(t, e), first = (begin + nbytes - 1) / nbytes, last = end / nbytes,
                   number = first_row(t, e);
    if (first > last)
        return keep(c, chunk, begin, end, data, nbytes, number);
    for (uint64_t k = first; k < last; k++)
        fsdpck_content_add_row(&sum, data + (k * nbytes - begin), nbytes, number + k);
    pthread_mutex_lock(&c->lock);
    fsdpck_content_add(&chunk->sum, &sum);
    chunk->nrows += last - first;
    pthread_mutex_unlock(&c->lock);
    if (begin < first * nbytes)
        keep(c, chunk, begin, first * nbytes, data, nbytes, number);
    if (last * nbytes < end)
        keep(c, chunk, last * nbytes, end, data + (last * nbytes - begin), nbytes, number);
}

/* ---- results ---- */

static bool same(const struct fsdpck_content *sum, const uint8_t want[16])
{
    uint8_t got[16];
    fsdpck_content_store(sum, got);
    return memcmp(got, want, sizeof got) == 0;
}

/* Computes the content of a chunk: the sum of the rows read, or (quick) the table's value. False: some rows were not
 * read. */
static bool check_chunk_content(struct fsdpck_verify_contents *c, uint32_t rank, const struct fsdpck_table *t,
                                const struct fsdpck_table_entry *e, struct fsdpck_content *out)
{
    const struct chunk_content *chunk = &c->chunks[rank][e - t->entries];
    const struct fsdpck_tensor *tensor = whole_rows(c, t, e);
    fsdpck_content_load(out, e->content);
    if (c->v->quick || !tensor || chunk->nrows != nrows(t, e))
        return c->v->quick && e->has_content;
    *out = chunk->sum;
    if (!e->has_content || same(out, e->content) || c->tensors[e->ordinal].suspect)
        return true;
    fsdpck_verifier_report_file(c->v, rank, e->payload, tensor->name,
                                "the chunk table has another content id for these rows than their bytes give");
    c->tensors[e->ordinal].suspect = true;
    return true;
}

static void add_up(struct fsdpck_verify_contents *c, uint32_t rank)
{
    const struct fsdpck_table *t = &files_of(c)[rank].loaded;
    for (uint64_t i = 0; c->chunks[rank] && i < t->nentries; i++) {
        const struct fsdpck_table_entry *e = &t->entries[i];
        struct fsdpck_content part;
        if (e->kind != FSDPCK_CHUNK_TENSOR || e->ordinal >= c->v->src->tensors.count)
            continue;
        c->tensors[e->ordinal].nbytes += e->decoded;
        if (check_chunk_content(c, rank, t, e, &part))
            fsdpck_content_add(&c->tensors[e->ordinal].sum, &part);
        else
            c->tensors[e->ordinal].unknown = true;
    }
}

/* Reads the whole tensor again, in order. */
static int read_again(struct fsdpck_verify_contents *c, size_t ordinal, struct fsdpck_content *sum,
                      struct fsdpck_error *err)
{
    struct fsdpck_source *src = c->v->src;
    const struct fsdpck_tensor *t = &source_tensors(src)[ordinal];
    const uint64_t item = fsdpck_dtype_info(t->dtype)->nbytes, step = PIECE_NBYTES / item;
    struct fsdpck_fetch f = { 0 };
    struct fsdpck_rows rows = { 0 };
    uint8_t *piece = malloc(PIECE_NBYTES);
    int rc = piece ? fsdpck_rows_init(&rows, err) : fsdpck_error_nomem(err, PIECE_NBYTES);
    if (!rc && (rc = fsdpck_fetch_init(&f, src, err)) == 0)
        fsdpck_rows_begin(&rows, t->ndim ? t->nbytes / t->shape[0] : t->nbytes, 0);
    for (uint64_t at = 0; !rc && at < t->nelem; at += step) {
        uint64_t n = t->nelem - at < step ? t->nelem - at : step;
        rc = fsdpck_stop_asked(src->opt.stop) ? fsdpck_error_set(err, FSDPCK_ERR_STOPPED, NULL, "stopped")
                                              : fsdpck_fetch_range(&f, ordinal, at, at + n, piece, err);
        if (!rc)
            fsdpck_rows_add(&rows, piece, n * item);
    }
    *sum = rows.sum;
    c->v->result->read_nbytes += f.read_nbytes;
    fsdpck_fetch_free(&f);
    fsdpck_rows_free(&rows);
    free(piece);
    return rc;
}

static int check_tensor_content(struct fsdpck_verify_contents *c, size_t ordinal, struct fsdpck_error *err)
{
    const struct fsdpck_tensor *t = &source_tensors(c->v->src)[ordinal];
    struct tensor_content *x = &c->tensors[ordinal];
    struct fsdpck_error e = { 0 };
    if (!t->has_content || t->alias_of >= 0 || x->suspect || x->nbytes != t->nbytes || (x->unknown && c->v->quick))
        return 0;
    int rc = x->unknown ? read_again(c, ordinal, &x->sum, &e) : 0;
    if (fsdpck_is_system_error(rc)) {
        *err = e;
        return rc;
    }
    const struct fsdpck_problem p = {
        .file = "index.json",
        .rank = -1,
        .tensor = t->name,
        .what = rc ? e.message : "its content id is not that of its rows: another checkpoint's, or edited"
    };
    if (rc || !same(&x->sum, t->content))
        fsdpck_verifier_report(c->v, &p);
    return 0;
}

int fsdpck_verify_contents_check(struct fsdpck_verify_contents *c, struct fsdpck_error *err)
{
    int rc = 0;
    for (uint32_t rank = 0; rank < c->v->src->files.count; rank++)
        add_up(c, rank);
    for (size_t i = 0; !rc && i < c->v->src->tensors.count; i++)
        rc = check_tensor_content(c, i, err);
    return rc;
}
