/* SPDX-License-Identifier: Apache-2.0 */
/* Reads fsdpck checkpoints. Computes from the placement rule which ranks can hold a box, and reads only their chunk
 * tables. The boxes in a table must equal those of the rule, so that chunks of a malicious file can neither overlap nor
 * leave holes. */
#include "format/source_fsdpck.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/box.h"
#include "tensor/cover.h"
#include "engine/files.h"

/* ---- tables ---- */

/* The index must announce compression; otherwise readers that do not support it would start to read. */
static int check_codecs(const struct fsdpck_source *src, const struct source_file *file, const struct fsdpck_table *t,
                        struct fsdpck_error *err)
{
    for (uint64_t i = 0; i < t->nentries && !src->compressed; i++)
        if (t->entries[i].codec != FSDPCK_CODEC_STORED)
            return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, file->path,
                                    "holds compressed chunks, and index.json does not require '%s'",
                                    FSDPCK_FEATURE_COMPRESSION);
    return 0;
}

static int load_table(struct fsdpck_source *src, uint32_t rank, struct index_file *f, struct fsdpck_error *err)
{
    const struct fsdpck_index *index = src->impl;
    const struct source_file *file = &source_files(src)[rank];
    struct fsdpck_trailer trailer;
    int fd;
    if (f->broken) {
        if (err && err->code == 0)
            *err = *f->broken;
        return f->broken->code;
    }
    int rc = fsdpck_files_acquire(src, rank, false, &fd, err);
    if (rc)
        return rc;
    rc = fsdpck_trailer_read(src->io, fd, file->path, file->pub.nbytes, &trailer, err);
    if (!rc && memcmp(trailer.save_id, index->save_id, 16) != 0)
        rc = fsdpck_error_set(err, FSDPCK_ERR_DAMAGED, file->path, "belongs to another save than index.json");
    if (!rc && (trailer.table != f->table || trailer.table_nbytes != f->table_nbytes ||
                !fsdpck_hash_equal(&trailer.table_hash, &f->table_hash)))
        rc = fsdpck_error_set(err, FSDPCK_ERR_DAMAGED, file->path,
                              "its chunk table is not the one that index.json names");
    if (!rc)
        rc = fsdpck_table_read(src->io, fd, file->path, &trailer, &f->loaded, err);
    if (!rc && f->loaded.rank != rank)
        rc = fsdpck_error_set(err, FSDPCK_ERR_DAMAGED, file->path, "was written by rank %u, not %u", f->loaded.rank,
                              rank);
    if (!rc)
        rc = check_codecs(src, file, &f->loaded, err);
    if (rc)
        fsdpck_table_free(&f->loaded);
    fsdpck_files_release(src, rank, false);
    f->is_loaded = !rc;
    return rc;
}

int fsdpck_index_table(struct fsdpck_source *src, uint32_t rank, const struct fsdpck_table **table,
                       struct fsdpck_error *err)
{
    struct fsdpck_index *index = src->impl;
    struct index_file *f = (struct index_file *)index->files.data + rank;
    pthread_mutex_lock(&index->lock);
    int rc = f->is_loaded ? 0 : load_table(src, rank, f, err);
    pthread_mutex_unlock(&index->lock);
    *table = &f->loaded;
    return rc;
}

/* ---- extents ---- */

struct lookup {
    struct fsdpck_source *src;
    const struct fsdpck_tensor *t;
    size_t ordinal;
    const uint64_t *offset, *size; /* the requested box */
    fsdpck_extent_fn visit;
    void *ctx;
    struct fsdpck_error *err;
    uint32_t rank; /* the current rank */
    uint64_t nth;  /* number of this rank's boxes so far */
    const struct fsdpck_table *table;
    uint64_t first, count; /* the rank's entries for the tensor */
};

static int disagrees(const struct lookup *l)
{
    fsdpck_error_set(l->err, FSDPCK_ERR_DAMAGED, source_files(l->src)[l->rank].path,
                     "its chunk table does not hold the chunks that the tensor's placement gives rank %u", l->rank);
    fsdpck_error_tensor(l->err, l->t->name);
    return FSDPCK_ERR_DAMAGED;
}

static int emit(struct lookup *l, const struct fsdpck_table_entry *e, const uint64_t *offset, const uint64_t *size)
{
    uint32_t n = l->t->ndim;
    const uint64_t *dims = l->table->dims + e->dims;
    if (e->ndim != n || memcmp(dims, offset, n * 8) != 0 || memcmp(dims + n, size, n * 8) != 0 ||
        e->decoded != fsdpck_box_nelem(size, n) * fsdpck_dtype_info(l->t->dtype)->nbytes)
        return disagrees(l);
    struct fsdpck_extent x = { .file = l->rank,
                               .offset = dims,
                               .size = dims + n,
                               .payload = e->payload,
                               .payload_nbytes = e->decoded,
                               .stored_nbytes = e->nbytes,
                               .compressed = e->codec == FSDPCK_CODEC_PLANES,
                               .hashes = l->table->hashes + 16 * e->first_hash };
    return l->visit(l->ctx, &x, l->err);
}

static const struct index_file *file_of(const struct lookup *l, uint32_t rank)
{
    return (const struct index_file *)((const struct fsdpck_index *)l->src->impl)->files.data + rank;
}

/* Finds the rank's entries for the tensor. */
static int find_entries(struct lookup *l)
{
    int rc = fsdpck_index_table(l->src, l->rank, &l->table, l->err);
    if (!rc)
        l->first = fsdpck_table_find(l->table, FSDPCK_CHUNK_TENSOR, (uint32_t)l->ordinal, &l->count);
    return rc;
}

/* Handles one box that the rule gives to the rank: the next entry of its table must equal it. A rule may give too many
 * boxes to iterate over, but there are never more than the file has room for entries. */
static int rule_box(void *ctx, const uint64_t *offset, const uint64_t *size)
{
    struct lookup *l = ctx;
    uint64_t o[FSDPCK_MAX_DIMS], s[FSDPCK_MAX_DIMS], nth = l->nth++;
    if (nth > source_files(l->src)[l->rank].pub.nbytes / FSDPCK_TABLE_ENTRY_NBYTES)
        return disagrees(l);
    if (!fsdpck_box_intersect(l->t->ndim, offset, size, l->offset, l->size, o, s))
        return 0;
    int rc = l->table ? 0 : find_entries(l);
    if (rc)
        return rc;
    return nth < l->count ? emit(l, &l->table->entries[l->first + nth], offset, size) : disagrees(l);
}

static int rank_boxes(struct lookup *l, const uint32_t *coord)
{
    const struct fsdpck_mesh *m = l->t->mesh;
    uint64_t at = 0;
    for (uint32_t d = 0; d < m->ndim; d++)
        at = at * m->sizes[d] + coord[d];
    l->rank = m->ranks ? m->ranks[at] : (uint32_t)at;
    l->nth = 0;
    l->table = NULL;
    if (file_of(l, l->rank)->broken)
        return 0;
    int rc = fsdpck_placement_boxes(m, l->t->placements, l->t->ndim, l->t->shape, coord, rule_box, l);
    if (rc == FSDPCK_ERR_LIMIT && l->err->code == 0)
        fsdpck_error_set(l->err, rc, l->src->path, "tensor '%s': its placement cuts it in more stripes than are read",
                         l->t->name);
    return rc;
}

/* Finds the coordinates of mesh dimension d that can intersect the requested box: exact if only one mesh dimension
 * shards the tensor dimension, otherwise all. */
static void coordinate_range(const struct lookup *l, uint32_t d, uint32_t *first, uint32_t *last)
{
    const struct fsdpck_placement *p = l->t->placements;
    uint32_t n = l->t->mesh->sizes[d], nsame = 0;
    *first = 0;
    *last = n - 1;
    for (uint32_t k = 0; k < l->t->mesh->ndim; k++)
        nsame += p[k].kind != FSDPCK_REPLICATE && p[k].dim == p[d].dim;
    if (p[d].kind != FSDPCK_SHARD || nsame != 1)
        return;
    uint64_t length = l->t->shape[p[d].dim], rows = length / n + (length % n != 0);
    *first = (uint32_t)(l->offset[p[d].dim] / rows);
    *last = (uint32_t)((l->offset[p[d].dim] + l->size[p[d].dim] - 1) / rows);
}

/* Walks the coordinates that can hold part of the box; skips replicas except the owner. */
static int by_rule(struct lookup *l)
{
    const struct fsdpck_mesh *m = l->t->mesh;
    uint32_t coord[FSDPCK_MAX_MESH_DIMS], first[FSDPCK_MAX_MESH_DIMS], last[FSDPCK_MAX_MESH_DIMS];
    for (uint32_t d = 0; d < m->ndim; d++) {
        coordinate_range(l, d, &first[d], &last[d]);
        coord[d] = first[d];
    }
    for (;;) {
        int rc = fsdpck_placement_owner(m, l->t->placements, l->ordinal, coord) ? rank_boxes(l, coord) : 0;
        if (rc)
            return rc;
        uint32_t d = m->ndim;
        while (d > 0 && coord[d - 1] == last[d - 1])
            d--, coord[d] = first[d];
        if (d == 0)
            return 0;
        coord[d - 1]++;
    }
}

/* Compares offsets lexicographically: the order of a tensor's entries. */
static int compare_offsets(const uint64_t *a, const uint64_t *b, uint32_t ndim)
{
    for (uint32_t d = 0; d < ndim; d++)
        if (a[d] != b[d])
            return a[d] < b[d] ? -1 : 1;
    return 0;
}

/* Finds a chunk listed in the index in its rank's table, by its box. */
static int explicit_chunk(struct lookup *l, const struct index_chunk *c)
{
    uint64_t o[FSDPCK_MAX_DIMS], s[FSDPCK_MAX_DIMS];
    if (!fsdpck_box_intersect(l->t->ndim, c->offset, c->size, l->offset, l->size, o, s))
        return 0;
    l->rank = c->rank;
    if (file_of(l, l->rank)->broken)
        return 0;
    int rc = find_entries(l);
    if (rc)
        return rc;
    for (uint64_t low = l->first, high = l->first + l->count; low < high;) {
        const struct fsdpck_table_entry *e = &l->table->entries[low + (high - low) / 2];
        int order = e->ndim == l->t->ndim ? compare_offsets(l->table->dims + e->dims, c->offset, e->ndim) : 0;
        if (order == 0)
            return emit(l, e, c->offset, c->size);
        if (order < 0)
            low += (high - low) / 2 + 1;
        else
            high = low + (high - low) / 2;
    }
    return disagrees(l);
}

static int extents(struct fsdpck_source *src, size_t ordinal, const uint64_t *offset, const uint64_t *size,
                   fsdpck_extent_fn visit, void *ctx, struct fsdpck_error *err)
{
    const struct fsdpck_index *index = src->impl;
    const struct index_tensor *it = (const struct index_tensor *)index->tensors.data + ordinal;
    struct fsdpck_error own = { 0 };
    struct lookup l = { .src = src,
                        .t = &source_tensors(src)[ordinal],
                        .ordinal = ordinal,
                        .offset = offset,
                        .size = size,
                        .visit = visit,
                        .ctx = ctx,
                        .err = err ? err : &own };
    if (l.t->placements)
        return by_rule(&l);
    for (uint64_t i = 0; i < it->nchunks; i++) {
        int rc = explicit_chunk(&l, &it->chunks[i]);
        if (rc)
            return rc;
    }
    return 0;
}

/* ---- items ---- */

static int check_item_blocks(struct fsdpck_source *src, const struct source_item *it, uint64_t hashes,
                             const uint8_t *data, uint64_t nbytes, uint64_t at, struct fsdpck_error *err)
{
    struct fsdpck_hash128 want, got;
    const char *path = source_files(src)[it->file].path;
    for (uint64_t done = 0; done < nbytes; done += FSDPCK_BLOCK_NBYTES) {
        uint64_t n = nbytes - done < FSDPCK_BLOCK_NBYTES ? nbytes - done : FSDPCK_BLOCK_NBYTES;
        int rc = fsdpck_files_read(src, it->file, &want, sizeof want,
                                   hashes + (at + done) / FSDPCK_BLOCK_NBYTES * sizeof want, err);
        if (rc)
            return rc;
        fsdpck_hash(data + done, n, &got);
        if (!fsdpck_hash_equal(&got, &want))
            return fsdpck_error_at(err, FSDPCK_ERR_DAMAGED, path, it->offset + at + done,
                                   "value '%s' of rank %u is damaged: a block hash differs", it->pub.name, it->file);
    }
    return 0;
}

static int read_item(struct fsdpck_source *src, size_t item, void *buf, uint64_t nbytes, uint64_t at,
                     struct fsdpck_error *err)
{
    const struct source_item *it = &source_items(src)[item];
    const struct fsdpck_table *t;
    uint64_t count;
    int rc = fsdpck_index_table(src, it->file, &t, err);
    if (rc)
        return rc;
    const struct fsdpck_table_entry *e = &t->entries[fsdpck_table_find(t, FSDPCK_CHUNK_ITEM, (uint32_t)item, &count)];
    if (count != 1 || e->payload != it->offset || e->nbytes != it->pub.nbytes)
        return fsdpck_error_set(err, FSDPCK_ERR_DAMAGED, source_files(src)[it->file].path,
                                "its chunk table does not hold value '%s' as index.json places it", it->pub.name);
    rc = fsdpck_files_read(src, it->file, buf, nbytes, it->offset + at, err);
    return !rc && !src->opt.no_verify
               ? check_item_blocks(src, it, t->hashes + e->first_hash * sizeof(struct fsdpck_hash128), buf, nbytes, at,
                                   err)
               : rc;
}

/* ---- opening ---- */

/* Listed chunks must fill their tensor, each element once; rules do by construction. */
static int check_explicit(struct fsdpck_source *src, const struct fsdpck_index *index, struct fsdpck_error *err)
{
    const struct index_tensor *list = index->tensors.data;
    for (size_t i = 0; i < index->tensors.count; i++) {
        const struct fsdpck_tensor *t = &source_tensors(src)[i];
        if (!list[i].chunks || t->alias_of >= 0)
            continue;
        struct fsdpck_cover *cover = fsdpck_cover_new(t->ndim, t->shape, list[i].nchunks, err);
        if (!cover)
            return FSDPCK_ERR_NOMEM;
        for (uint64_t c = 0; c < list[i].nchunks; c++)
            fsdpck_cover_add(cover, list[i].chunks[c].offset, list[i].chunks[c].size);
        int rc = fsdpck_cover_check(cover, src->path, t->name, err);
        fsdpck_cover_free(cover);
        for (uint64_t c = 0; !rc && c < list[i].nchunks; c++)
            if (list[i].chunks[c].rank >= src->files.count)
                rc = fsdpck_error_set(err, FSDPCK_ERR_FORMAT, src->path,
                                      "tensor '%s' has a chunk on rank %u, which has no file", t->name,
                                      list[i].chunks[c].rank);
        if (rc)
            return rc;
    }
    return 0;
}

static void close_index(struct fsdpck_source *src)
{
    struct fsdpck_index *index = src->impl;
    struct index_file *files = index->files.data;
    for (size_t i = 0; i < index->files.count; i++)
        fsdpck_table_free(&files[i].loaded);
    fsdpck_vec_free(&index->files);
    fsdpck_vec_free(&index->tensors);
    pthread_mutex_destroy(&index->lock);
    free(index);
}

static const struct fsdpck_source_ops ops = {
    .kind = "fsdpck", .extents = extents, .verify = fsdpck_verify_fsdpck, .read_item = read_item, .close = close_index
};

int fsdpck_open_fsdpck(struct fsdpck_source *src, struct fsdpck_error *err)
{
    struct fsdpck_index *index = calloc(1, sizeof *index);
    if (!index)
        return fsdpck_error_nomem(err, sizeof *index);
    pthread_mutex_init(&index->lock, NULL);
    src->impl = index;
    src->ops = &ops;
    int rc = fsdpck_index_read(src, index, err);
    src->nranks = src->files.count;
    return !rc ? check_explicit(src, index, err) : rc;
}
