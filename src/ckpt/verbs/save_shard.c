/* SPDX-License-Identifier: Apache-2.0 */
/* Writes one rank's shard file: each (possibly strided) box in its memory becomes a chunk, and each item is copied.
 * Knows nothing of other ranks. */
#include "verbs/save_shard.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/box.h"
#include "base/buffer.h"
#include "base/pool.h"
#include "tensor/rows.h"
#include "format/shard_finish.h"
#include "format/shard_name.h"
#include "base/ioutil.h"
#include "engine/stream.h"
#include "base/stop.h"

#define BAND_NBYTES (4u << 20) /* a multiple of the hash block */

struct shard_piece { /* a box or an item, and its entry in the shard */
    const struct fsdpck_save_tensor *t;
    const struct fsdpck_save_box *box;
    const struct fsdpck_save_item *item; /* NULL: a box */
    size_t entry;
};

struct worker {
    uint8_t *buf; /* a band, and a page for its alignment */
    struct fsdpck_rows rows;
    struct fsdpck_packer packer;
};

struct saver {
    const struct fsdpck_save_request *req;
    struct fsdpck_save_ordinals ordinals;
    const struct fsdpck_options *opt;
    struct fsdpck_shard shard;
    struct fsdpck_vec pieces; /* struct shard_piece */
    struct fsdpck_out_files *out;
    struct worker *workers;
    pthread_mutex_t lock;
    uint64_t done_nbytes, total_nbytes;
};

/* ---- layout ---- */

static bool writes(const struct fsdpck_save_request *req, const struct fsdpck_save_tensor *t, uint32_t ordinal)
{
    uint32_t coord[FSDPCK_MAX_MESH_DIMS];
    if (!t->mesh)
        return true;
    return fsdpck_mesh_coordinate(t->mesh, req->rank, coord) &&
           fsdpck_placement_owner(t->mesh, t->placements, ordinal, coord);
}

static int by_offset(const void *a, const void *b)
{
    const struct shard_piece *x = a, *y = b;
    for (uint32_t d = 0; d < x->t->ndim; d++)
        if (x->box->offset[d] != y->box->offset[d])
            return x->box->offset[d] < y->box->offset[d] ? -1 : 1;
    return 0;
}

static int lay_out_tensor(struct saver *s, size_t i, struct fsdpck_error *err)
{
    const struct fsdpck_save_tensor *t = &s->req->tensors[i];
    uint32_t ordinal = s->ordinals.tensors ? s->ordinals.tensors[i] : (uint32_t)i;
    size_t first = s->pieces.count;
    if (t->alias_of || !writes(s->req, t, ordinal))
        return 0;
    for (size_t b = 0; b < t->nboxes; b++) {
        if (fsdpck_box_nelem(t->boxes[b].size, t->ndim) == 0)
            continue;
        struct shard_piece *p = fsdpck_vec_push(&s->pieces, err);
        if (!p)
            return FSDPCK_ERR_NOMEM;
        *p = (struct shard_piece){ .t = t, .box = &t->boxes[b] };
    }
    struct shard_piece *pieces = s->pieces.data;
    if (s->pieces.count > first + 1)
        qsort(pieces + first, s->pieces.count - first, sizeof *pieces, by_offset);
    for (size_t k = first; k < s->pieces.count; k++) {
        const struct fsdpck_save_box *b = pieces[k].box;
        pieces[k].entry = s->shard.entries.count;
        s->total_nbytes += fsdpck_box_nelem(b->size, t->ndim) * fsdpck_dtype_info(t->dtype)->nbytes;
        int rc = fsdpck_shard_add_chunk(&s->shard, ordinal, t->dtype, t->ndim, b->offset, b->size, err);
        if (rc)
            return rc;
    }
    return 0;
}

static int lay_out_item(struct saver *s, size_t i, struct fsdpck_error *err)
{
    const struct fsdpck_save_item *item = &s->req->items[i];
    if (!item->data)
        return 0;
    struct shard_piece *p = fsdpck_vec_push(&s->pieces, err);
    if (!p)
        return FSDPCK_ERR_NOMEM;
    *p = (struct shard_piece){ .item = item, .entry = s->shard.entries.count };
    s->total_nbytes += item->nbytes;
    return fsdpck_shard_add_item(&s->shard, s->ordinals.items ? s->ordinals.items[i] : (uint32_t)i, item->nbytes, err);
}

static int lay_out(struct saver *s, struct fsdpck_error *err)
{
    int rc = 0;
    fsdpck_shard_begin(&s->shard, s->req->rank);
    s->shard.compressed = s->req->compress;
    for (size_t i = 0; !rc && i < s->req->ntensors; i++)
        rc = lay_out_tensor(s, i, err);
    for (size_t i = 0; !rc && i < s->req->nitems; i++)
        rc = lay_out_item(s, i, err);
    fsdpck_shard_close(&s->shard);
    return rc;
}

/* ---- writing ---- */

struct band { /* part of a box, copied from the caller's memory */
    const struct shard_piece *p;
    const int64_t *strides;
    uint64_t item;
    uint8_t *dst;
};

static int gather_box(void *ctx, const uint64_t *offset, const uint64_t *size)
{
    struct band *b = ctx;
    int64_t dense[FSDPCK_MAX_DIMS];
    const uint8_t *src = b->p->box->data;
    for (uint32_t d = 0; d < b->p->t->ndim; d++)
        src += (int64_t)offset[d] * b->strides[d];
    fsdpck_dense_strides(b->p->t->ndim, size, b->item, dense);
    fsdpck_copy_strided(b->p->t->ndim, size, b->item, b->dst, dense, src, b->strides);
    b->dst += fsdpck_box_nelem(size, b->p->t->ndim) * b->item;
    return 0;
}

static int fill_band(struct band *b, uint64_t first, uint64_t nelem, struct fsdpck_error *err)
{
    const struct fsdpck_save_box *box = b->p->box;
    if (!box->data)
        return box->read(box->ctx, box, first, nelem, b->dst, err);
    fsdpck_range_boxes(b->p->t->ndim, box->size, first, first + nelem, gather_box, b);
    return 0;
}

static bool is_whole_rows(const struct shard_piece *p)
{
    for (uint32_t d = 1; d < p->t->ndim; d++)
        if (p->box->size[d] != p->t->shape[d])
            return false;
    return true;
}

static int check_stop(const struct saver *s, struct fsdpck_error *err)
{
    return fsdpck_stop_asked(s->opt->stop) ? fsdpck_error_set(err, FSDPCK_ERR_STOPPED, NULL, "stopped") : 0;
}

static int write_bands(struct saver *s, const struct shard_piece *p, struct fsdpck_stream *stream, struct worker *w,
                       bool has_rows, struct fsdpck_error *err)
{
    uint64_t item = fsdpck_dtype_info(p->t->dtype)->nbytes, nelem = fsdpck_box_nelem(p->box->size, p->t->ndim);
    int64_t dense[FSDPCK_MAX_DIMS];
    fsdpck_dense_strides(p->t->ndim, p->box->size, item, dense);
    struct band b = { .p = p, .strides = p->box->strides ? p->box->strides : dense, .item = item };
    for (uint64_t at = 0; at < nelem;) {
        uint64_t n = nelem - at < BAND_NBYTES / item ? nelem - at : BAND_NBYTES / item;
        uint8_t *data = b.dst = w->buf + fsdpck_stream_position(stream) % FSDPCK_PAGE_NBYTES;
        int rc = check_stop(s, err);
        if (!rc)
            rc = fill_band(&b, at, n, err);
        if (!rc && has_rows)
            fsdpck_rows_add(&w->rows, data, n * item);
        if (!rc)
            rc = fsdpck_stream_write(stream, data, n * item, err);
        if (rc)
            return rc;
        at += n;
    }
    return 0;
}

static int write_box(struct saver *s, const struct shard_piece *p, struct fsdpck_stream *stream, struct worker *w,
                     struct fsdpck_shard_entry *e, struct fsdpck_error *err)
{
    const struct fsdpck_save_tensor *t = p->t;
    e->has_content = is_whole_rows(p);
    if (e->has_content)
        fsdpck_rows_begin(&w->rows, t->ndim ? e->decoded_nbytes / p->box->size[0] : e->decoded_nbytes,
                          t->ndim ? p->box->offset[0] : 0);
    fsdpck_packer_begin(&w->packer, NULL, 0);
    stream->packer = &w->packer;
    int rc = write_bands(s, p, stream, w, e->has_content, err);
    e->content = w->rows.sum;
    return rc;
}

static int write_item(struct saver *s, const struct fsdpck_save_item *item, struct fsdpck_stream *stream,
                      struct fsdpck_error *err)
{
    while (stream->at < item->nbytes) {
        uint64_t left = item->nbytes - stream->at;
        int rc = check_stop(s, err);
        if (!rc)
            rc = fsdpck_stream_write(stream, (const uint8_t *)item->data + stream->at,
                                     left < BAND_NBYTES ? left : BAND_NBYTES, err);
        if (rc)
            return rc;
    }
    return 0;
}

static int write_piece(void *ctx, size_t number, unsigned worker, struct fsdpck_error *err)
{
    struct saver *s = ctx;
    const struct shard_piece *p = (const struct shard_piece *)s->pieces.data + number;
    struct fsdpck_shard_entry *e = &shard_entries(&s->shard)[p->entry];
    const struct fsdpck_out_chunk chunk = { .payload = fsdpck_shard_payload(e),
                                            .hashes = fsdpck_shard_hashes(&s->shard, e),
                                            .compressed = s->shard.compressed && !p->item,
                                            .planes = fsdpck_planes_of(e->dtype) };
    uint64_t nbytes = p->item ? e->layout.payload_nbytes : e->decoded_nbytes;
    struct fsdpck_stream stream;
    fsdpck_stream_begin(&stream, s->out, &chunk, 0, NULL, 0);
    int rc = p->item ? write_item(s, p->item, &stream, err) : write_box(s, p, &stream, &s->workers[worker], e, err);
    e->crc32 = stream.crc32;
    if (rc)
        return rc;
    pthread_mutex_lock(&s->lock);
    s->done_nbytes += nbytes;
    if (s->opt->progress)
        s->opt->progress(s->opt->ctx, s->done_nbytes, s->total_nbytes);
    pthread_mutex_unlock(&s->lock);
    return 0;
}

/* ---- the file ---- */

static void free_workers(struct worker *workers, unsigned n)
{
    for (unsigned i = 0; workers && i < n; i++) {
        free(workers[i].buf);
        fsdpck_rows_free(&workers[i].rows);
        fsdpck_packer_free(&workers[i].packer);
    }
    free(workers);
}

static int new_workers(struct saver *s, unsigned n, struct fsdpck_error *err)
{
    int rc = (s->workers = calloc(n, sizeof *s->workers)) ? 0 : fsdpck_error_nomem(err, n * sizeof *s->workers);
    for (unsigned i = 0; !rc && i < n; i++) {
        struct worker *w = &s->workers[i];
        rc = fsdpck_rows_init(&w->rows, err);
        if (!rc && !(w->buf = fsdpck_buffer_new(BAND_NBYTES + FSDPCK_PAGE_NBYTES)))
            rc = fsdpck_error_nomem(err, BAND_NBYTES);
        if (!rc && s->shard.compressed)
            rc = fsdpck_packer_init(&w->packer, BAND_NBYTES / FSDPCK_BLOCK_NBYTES, err);
    }
    return rc;
}

static int write_file(struct saver *s, const struct fsdpck_out_file *file, const uint8_t save_id[16],
                      struct fsdpck_error *err)
{
    uint64_t each = s->shard.compressed ? 2 * BAND_NBYTES + FSDPCK_PACKER_OWN_NBYTES : BAND_NBYTES,
             fit = s->opt->memory_nbytes / each,
             wanted =
                 s->opt->nthreads == 1 ? 1 /* the caller's own */ : (uint64_t)s->opt->nthreads * FSDPCK_POOL_WAITING;
    unsigned n = (unsigned)(wanted < fit ? wanted : fit ? fit : 1);
    if (!(s->out = fsdpck_out_files_new(s->opt->io, file, 1, err)))
        return FSDPCK_ERR_NOMEM;
    int rc = new_workers(s, n, err);
    if (!rc)
        rc = fsdpck_out_files_create(s->out, 1, s->opt->stop, err);
    if (!rc)
        rc = fsdpck_pool_run(n, s->pieces.count, write_piece, s, s->opt->stop, err);
    free_workers(s->workers, n);
    if (!rc)
        rc = fsdpck_shard_finish(&s->shard, s->out, 0, save_id, err);
    return !rc ? check_stop(s, err) : rc; /* the last call of progress may have asked for it */
}

int fsdpck_save_shard(const struct fsdpck_save_request *req, struct fsdpck_save_ordinals ordinals,
                      const struct fsdpck_save_place *place, const struct fsdpck_options *opt,
                      struct fsdpck_transfer_result *result, struct fsdpck_error *err)
{
    struct saver s = { .req = req,
                       .ordinals = ordinals,
                       .opt = opt,
                       .pieces = FSDPCK_VEC(struct shard_piece),
                       .lock = PTHREAD_MUTEX_INITIALIZER };
    char name[FSDPCK_SHARD_NAME_MAX];
    fsdpck_shard_name(req->rank, place->in_place, place->save_id, name);
    char *path = fsdpck_path_join(place->dir, name, err);
    int rc = path ? lay_out(&s, err) : FSDPCK_ERR_NOMEM;
    struct fsdpck_out_file file = { .path = path, .nbytes = s.shard.nbytes };
    if (!rc)
        rc = write_file(&s, &file, place->save_id, err);
    result->payload_nbytes = s.done_nbytes;
    result->written_nbytes = s.shard.nbytes;
    fsdpck_out_files_free(s.out);
    fsdpck_vec_free(&s.pieces);
    fsdpck_shard_free(&s.shard);
    pthread_mutex_destroy(&s.lock);
    free(path);
    return rc;
}
