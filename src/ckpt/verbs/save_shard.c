/* SPDX-License-Identifier: Apache-2.0 */
/* Writes one rank's shard file: each (possibly strided) box in its memory becomes a chunk. Knows nothing of other
 * ranks. */
#include "verbs/save_shard.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/box.h"
#include "base/buffer.h"
#include "base/checked.h"
#include "base/pool.h"
#include "tensor/rows.h"
#include "format/shard_finish.h"
#include "engine/stream.h"
#include "base/utf8.h"
#include "base/stop.h"

#define BAND_NBYTES (4u << 20) /* a multiple of the hash block */

struct shard_box { /* a box and its entry in the shard */
    const struct fsdpck_save_tensor *t;
    const struct fsdpck_save_box *box;
    size_t entry;
};

struct saver {
    const struct fsdpck_save_request *req;
    const struct fsdpck_options *opt;
    struct fsdpck_shard shard;
    struct fsdpck_vec boxes; /* struct shard_box */
    struct fsdpck_out_files *out;
    pthread_mutex_t lock;
    uint64_t done_nbytes, total_nbytes;
};

/* ---- checking ---- */

static int complain(const struct fsdpck_save_tensor *t, struct fsdpck_error *err, const char *what)
{
    fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "%s", what);
    fsdpck_error_tensor(err, t->name);
    return FSDPCK_ERR_USAGE;
}

struct box_match { /* compares the boxes of the rule with the caller's */
    const struct fsdpck_save_tensor *t;
    size_t nth;
};

static int match_box(void *ctx, const uint64_t *offset, const uint64_t *size)
{
    struct box_match *m = ctx;
    const struct fsdpck_save_box *b = m->nth < m->t->nboxes ? &m->t->boxes[m->nth] : NULL;
    m->nth++;
    size_t n = m->t->ndim * sizeof *offset;
    return !b || (n && (memcmp(b->offset, offset, n) != 0 || memcmp(b->size, size, n) != 0));
}

/* Checks that every coordinate is a rank of this save, and that no rank appears twice. */
static bool check_mesh(const struct fsdpck_mesh *mesh, uint32_t nranks)
{
    uint64_t n = 1, taken[FSDPCK_MAX_RANKS / 64] = { 0 };
    for (uint32_t d = 0; d < mesh->ndim; d++) {
        n *= mesh->sizes[d]; /* at most 2^16 * 2^32 before the check */
        if (!mesh->names[d] || n == 0 || n > nranks)
            return false;
    }
    for (uint64_t i = 0; mesh->ranks && i < n; i++) {
        uint32_t rank = mesh->ranks[i];
        if (rank >= nranks || taken[rank / 64] >> rank % 64 & 1)
            return false;
        taken[rank / 64] |= 1ull << rank % 64;
    }
    return true;
}

static int check_rule(const struct fsdpck_save_request *req, const struct fsdpck_save_tensor *t,
                      struct fsdpck_error *err)
{
    uint32_t coord[FSDPCK_MAX_MESH_DIMS];
    struct box_match m = { .t = t };
    if (!t->placements || t->mesh->ndim == 0 || t->mesh->ndim > FSDPCK_MAX_MESH_DIMS ||
        !check_mesh(t->mesh, req->nranks))
        return complain(t, err,
                        "its mesh has no placements, too many dimensions, or ranks that the save does not have (or one "
                        "of them twice)");
    for (uint32_t d = 0; d < t->mesh->ndim; d++)
        if (t->placements[d].kind != FSDPCK_REPLICATE && t->placements[d].dim >= t->ndim)
            return complain(t, err, "is sharded on a dimension that it does not have");
    if (!fsdpck_mesh_coordinate(t->mesh, req->rank, coord))
        return t->nboxes ? complain(t, err, "this rank is not on its mesh, but hands over boxes") : 0;
    if (fsdpck_placement_boxes(t->mesh, t->placements, t->ndim, t->shape, coord, match_box, &m) != 0 ||
        m.nth != t->nboxes)
        return complain(t, err, "the boxes are not those that mesh and placements give this rank");
    return 0;
}

static int check_tensor(const struct fsdpck_save_request *req, const struct fsdpck_save_tensor *t,
                        struct fsdpck_error *err)
{
    uint64_t nelem, nbytes;
    if (!t->name || !fsdpck_utf8_valid(t->name, strlen(t->name)))
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "a tensor has no name, or one that is not valid UTF-8");
    if (t->alias_of)
        return t->nboxes ? complain(t, err, "is an alias, and hands over boxes") : 0;
    if (t->ndim > FSDPCK_MAX_DIMS || (unsigned)t->dtype >= FSDPCK_NDTYPES ||
        !checked_shape(t->shape, t->ndim, fsdpck_dtype_info(t->dtype)->nbytes, &nelem, &nbytes))
        return complain(t, err, "its shape or dtype makes no sense");
    for (size_t i = 0; i < t->nboxes; i++)
        if (!t->boxes[i].data || !fsdpck_box_inside(t->ndim, t->boxes[i].offset, t->boxes[i].size, t->shape))
            return complain(t, err, "a box leaves its shape, or has no data");
    return t->mesh ? check_rule(req, t, err) : 0;
}

int fsdpck_save_check(const struct fsdpck_save_request *req, struct fsdpck_error *err)
{
    if (!req->out || req->nranks == 0 || req->nranks > FSDPCK_MAX_RANKS || req->rank >= req->nranks ||
        (req->nranks > 1 && !req->barrier))
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                                "a save wants an output, a rank below the number of ranks (at most %u), and a barrier "
                                "where there are several",
                                FSDPCK_MAX_RANKS);
    for (size_t i = 0; i < req->ntensors; i++) {
        int rc = check_tensor(req, &req->tensors[i], err);
        if (rc)
            return rc;
    }
    return 0;
}

/* ---- layout ---- */

static bool writes(const struct fsdpck_save_request *req, size_t ordinal)
{
    const struct fsdpck_save_tensor *t = &req->tensors[ordinal];
    uint32_t coord[FSDPCK_MAX_MESH_DIMS];
    if (!t->mesh)
        return true;
    return fsdpck_mesh_coordinate(t->mesh, req->rank, coord) &&
           fsdpck_placement_owner(t->mesh, t->placements, ordinal, coord);
}

static int by_offset(const void *a, const void *b)
{
    const struct shard_box *x = a, *y = b;
    for (uint32_t d = 0; d < x->t->ndim; d++)
        if (x->box->offset[d] != y->box->offset[d])
            return x->box->offset[d] < y->box->offset[d] ? -1 : 1;
    return 0;
}

static int lay_out_tensor(struct saver *s, size_t ordinal, struct fsdpck_error *err)
{
    const struct fsdpck_save_tensor *t = &s->req->tensors[ordinal];
    size_t first = s->boxes.count;
    if (t->alias_of || !writes(s->req, ordinal))
        return 0;
    for (size_t i = 0; i < t->nboxes; i++) {
        if (fsdpck_box_nelem(t->boxes[i].size, t->ndim) == 0)
            continue;
        struct shard_box *p = fsdpck_vec_push(&s->boxes, err);
        if (!p)
            return FSDPCK_ERR_NOMEM;
        *p = (struct shard_box){ .t = t, .box = &t->boxes[i] };
    }
    struct shard_box *boxes = s->boxes.data;
    if (s->boxes.count > first + 1)
        qsort(boxes + first, s->boxes.count - first, sizeof *boxes, by_offset);
    for (size_t i = first; i < s->boxes.count; i++) {
        const struct fsdpck_save_box *b = boxes[i].box;
        boxes[i].entry = s->shard.entries.count;
        s->total_nbytes += fsdpck_box_nelem(b->size, t->ndim) * fsdpck_dtype_info(t->dtype)->nbytes;
        int rc = fsdpck_shard_add_chunk(&s->shard, (uint32_t)ordinal, t->dtype, t->ndim, b->offset, b->size, err);
        if (rc)
            return rc;
    }
    return 0;
}

/* ---- writing ---- */

struct band { /* part of a box, copied from the caller's memory */
    const struct shard_box *p;
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

static bool is_whole_rows(const struct shard_box *p)
{
    for (uint32_t d = 1; d < p->t->ndim; d++)
        if (p->box->size[d] != p->t->shape[d])
            return false;
    return true;
}

static int write_bands(struct saver *s, const struct shard_box *p, struct fsdpck_stream *stream,
                       struct fsdpck_rows *rows, uint8_t *buf, struct fsdpck_error *err)
{
    uint64_t item = fsdpck_dtype_info(p->t->dtype)->nbytes, nelem = fsdpck_box_nelem(p->box->size, p->t->ndim);
    int64_t dense[FSDPCK_MAX_DIMS];
    fsdpck_dense_strides(p->t->ndim, p->box->size, item, dense);
    struct band b = { .p = p, .strides = p->box->strides ? p->box->strides : dense, .item = item };
    for (uint64_t at = 0; at < nelem;) {
        uint64_t n = nelem - at < BAND_NBYTES / item ? nelem - at : BAND_NBYTES / item;
        uint8_t *data = b.dst = buf + fsdpck_stream_position(stream) % FSDPCK_PAGE_NBYTES;
        if (fsdpck_stop_asked(s->opt->stop))
            return fsdpck_error_set(err, FSDPCK_ERR_STOPPED, NULL, "stopped");
        fsdpck_range_boxes(p->t->ndim, p->box->size, at, at + n, gather_box, &b);
        if (rows->row_nbytes)
            fsdpck_rows_add(rows, data, n * item);
        int rc = fsdpck_stream_write(stream, data, n * item, err);
        if (rc)
            return rc;
        at += n;
    }
    return 0;
}

static int write_box(void *ctx, size_t number, unsigned worker, struct fsdpck_error *err)
{
    struct saver *s = ctx;
    const struct shard_box *p = (const struct shard_box *)s->boxes.data + number;
    struct fsdpck_shard_entry *e = &shard_entries(&s->shard)[p->entry];
    struct fsdpck_out_chunk chunk = { .payload = fsdpck_shard_payload(e), .hashes = fsdpck_shard_hashes(&s->shard, e) };
    struct fsdpck_stream stream;
    struct fsdpck_rows rows;
    uint8_t *buf = fsdpck_buffer_new(BAND_NBYTES + FSDPCK_PAGE_NBYTES);
    (void)worker;
    int rc = fsdpck_rows_init(&rows, err);
    if (!rc && !buf)
        rc = fsdpck_error_nomem(err, BAND_NBYTES);
    fsdpck_stream_begin(&stream, s->out, &chunk, 0, NULL, 0);
    if ((e->has_content = is_whole_rows(p)))
        fsdpck_rows_begin(&rows, p->t->ndim ? e->layout.payload_nbytes / p->box->size[0] : e->layout.payload_nbytes,
                          p->t->ndim ? p->box->offset[0] : 0);
    if (!rc)
        rc = write_bands(s, p, &stream, &rows, buf, err);
    e->crc32 = stream.crc32;
    e->content = rows.sum;
    fsdpck_rows_free(&rows);
    free(buf);
    if (!rc) {
        pthread_mutex_lock(&s->lock);
        s->done_nbytes += e->layout.payload_nbytes;
        if (s->opt->progress)
            s->opt->progress(s->opt->ctx, s->done_nbytes, s->total_nbytes);
        pthread_mutex_unlock(&s->lock);
    }
    return rc;
}

static int write_file(struct saver *s, const struct fsdpck_out_file *file, const uint8_t save_id[16],
                      struct fsdpck_error *err)
{
    uint64_t fit = s->opt->memory_nbytes / BAND_NBYTES;
    unsigned n = s->opt->nthreads < fit ? s->opt->nthreads : fit ? (unsigned)fit : 1;
    if (!(s->out = fsdpck_out_files_new(s->opt->io, file, 1, err)))
        return FSDPCK_ERR_NOMEM;
    int rc = fsdpck_out_files_create(s->out, err);
    if (!rc)
        rc = fsdpck_pool_run(n, s->boxes.count, write_box, s, s->opt->stop, err);
    return !rc ? fsdpck_shard_finish(&s->shard, s->out, 0, save_id, err) : rc;
}

int fsdpck_save_shard(const struct fsdpck_save_request *req, const struct fsdpck_options *opt, const char *path,
                      const uint8_t save_id[16], struct fsdpck_transfer_result *result, struct fsdpck_error *err)
{
    struct saver s = {
        .req = req, .opt = opt, .boxes = FSDPCK_VEC(struct shard_box), .lock = PTHREAD_MUTEX_INITIALIZER
    };
    int rc = 0;
    fsdpck_shard_begin(&s.shard, req->rank);
    for (size_t i = 0; !rc && i < req->ntensors; i++)
        rc = lay_out_tensor(&s, i, err);
    fsdpck_shard_close(&s.shard);
    struct fsdpck_out_file file = { .path = path, .nbytes = s.shard.nbytes };
    if (!rc)
        rc = write_file(&s, &file, save_id, err);
    result->payload_nbytes = s.done_nbytes;
    result->written_nbytes = s.shard.nbytes;
    fsdpck_out_files_free(s.out);
    fsdpck_vec_free(&s.boxes);
    fsdpck_shard_free(&s.shard);
    pthread_mutex_destroy(&s.lock);
    return rc;
}
