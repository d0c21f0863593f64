/* SPDX-License-Identifier: Apache-2.0 */
/* The chunks of one tensor: joins its boxes from state_dict_metadata with the items that storage_data gives for their
 * offsets, and checks that they fill the tensor. Opens no file. */
#include "torch/dcp/reading.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/box.h"
#include "tensor/cover.h"

/* Positions in an array of dims, for sorting. */
struct sorting {
    const uint64_t *dims;
    uint32_t ndim, pitch;
};

struct join {
    struct dcp_reading *r;
    const struct dcp_entry *e;
    const char *name;
    uint32_t ndim;
    const uint64_t *shape;
    uint64_t nchunks;
    uint64_t *boxes;                      /* (nchunks, 2, ndim) as listed */
    uint64_t *offsets;                    /* (e->nstored, ndim) of storage_data */
    struct dcp_item_location *locations;  /* (e->nstored) */
    uint64_t *chunk_order, *stored_order; /* sorted by offsets */
};

static int compare_dims(const uint64_t *a, const uint64_t *b, uint32_t ndim)
{
    for (uint32_t d = 0; d < ndim; d++)
        if (a[d] != b[d])
            return a[d] < b[d] ? -1 : 1;
    return 0;
}

static int by_offset(const void *a, const void *b, void *ctx)
{
    const struct sorting *s = ctx;
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    int order = compare_dims(s->dims + x * s->pitch, s->dims + y * s->pitch, s->ndim);
    return order ? order : x < y ? -1 : x > y;
}

static void sort(uint64_t *order, uint64_t count, const uint64_t *dims, uint32_t ndim, uint32_t pitch)
{
    struct sorting s = { dims, ndim, pitch };
    for (uint64_t i = 0; i < count; i++)
        order[i] = i;
    qsort_r(order, count, sizeof *order, by_offset, &s);
}

/* Reads ChunkStorageMetadata. Skips empty boxes: ranks without rows list one, and no reader needs it. */
static int read_boxes(struct join *j, fsdpck_node chunks)
{
    const struct fsdpck_pickle *p = j->r->p;
    size_t count = fsdpck_pickle_count(p, chunks);
    for (size_t i = 0; i < count; i++) {
        fsdpck_node chunk = fsdpck_pickle_child(p, chunks, i);
        uint64_t *box = j->boxes + j->nchunks * 2 * j->ndim, dims[2][FSDPCK_MAX_DIMS];
        uint32_t noffset, nsize;
        if (!fsdpck_dcp_is_a(j->r, chunk, "ChunkStorageMetadata") ||
            !fsdpck_node_dims(p, fsdpck_dcp_attribute(j->r, chunk, "offsets"), &noffset, dims[0]) ||
            !fsdpck_node_dims(p, fsdpck_dcp_attribute(j->r, chunk, "sizes"), &nsize, dims[1]) || noffset != j->ndim ||
            nsize != j->ndim)
            return fsdpck_dcp_fail(j->r, FSDPCK_ERR_FORMAT, j->name, "chunk %zu is not a box of %u dimensions", i,
                                   j->ndim);
        if (!fsdpck_box_nelem(dims[1], j->ndim))
            continue;
        if (!fsdpck_box_inside(j->ndim, dims[0], dims[1], j->shape))
            return fsdpck_dcp_fail(j->r, FSDPCK_ERR_FORMAT, j->name, "chunk %zu reaches beyond the tensor's shape", i);
        for (uint32_t d = 0; d < j->ndim; d++) {
            box[d] = dims[0][d];
            box[j->ndim + d] = dims[1][d];
        }
        j->nchunks++;
    }
    return 0;
}

static int read_stored(struct join *j)
{
    const struct fsdpck_pickle *p = j->r->p;
    for (uint64_t i = 0; i < j->e->nstored; i++) {
        size_t at = (size_t)j->r->stored[j->e->first_stored + i];
        fsdpck_node index = fsdpck_pickle_child(p, j->r->storage, 2 * at);
        uint64_t dims[FSDPCK_MAX_DIMS];
        uint32_t ndim;
        if (!fsdpck_node_dims(p, fsdpck_dcp_attribute(j->r, index, "offset"), &ndim, dims) || ndim != j->ndim)
            return fsdpck_dcp_fail(j->r, FSDPCK_ERR_FORMAT, j->name,
                                   "storage_data has an entry whose offset is not %u integers", j->ndim);
        if (ndim)
            memcpy(j->offsets + i * ndim, dims, ndim * sizeof *dims);
        int rc = fsdpck_dcp_read_location(j->r, j->name, fsdpck_pickle_child(p, j->r->storage, 2 * at + 1),
                                          &j->locations[i]);
        if (rc)
            return rc;
    }
    return 0;
}

static bool same_place(const struct dcp_item_location *a, const struct dcp_item_location *b)
{
    return a->file == b->file && a->offset == b->offset && a->nbytes == b->nbytes;
}

/* Finds the item of the box at `offset`. Both lists are sorted; *k advances. */
static int find_item(struct join *j, const uint64_t *offset, uint64_t *k, struct dcp_item_location *out)
{
    char text[128];
    const struct dcp_item_location *found = NULL;
    for (; *k < j->e->nstored; ++*k) {
        uint64_t s = j->stored_order[*k];
        int order = compare_dims(j->offsets + s * j->ndim, offset, j->ndim);
        if (order > 0)
            break;
        if (order < 0)
            continue;
        if (found && !same_place(found, &j->locations[s]))
            return fsdpck_dcp_fail(j->r, FSDPCK_ERR_FORMAT, j->name, "storage_data has two places for the chunk at %s",
                                   fsdpck_format_dims(text, sizeof text, offset, j->ndim));
        found = &j->locations[s];
    }
    if (!found)
        return fsdpck_dcp_fail(j->r, FSDPCK_ERR_MISSING, j->name, "storage_data has no entry for the chunk at %s",
                               fsdpck_format_dims(text, sizeof text, offset, j->ndim));
    *out = *found;
    return 0;
}

static int join_chunks(struct join *j, struct dcp_tensor *out)
{
    struct fsdpck_arena *arena = &j->r->src->arena;
    uint64_t *boxes = fsdpck_arena_array(arena, j->nchunks, 2 * j->ndim * sizeof *boxes, j->r->err), k = 0;
    struct dcp_chunk *chunks = fsdpck_arena_array(arena, j->nchunks, sizeof *chunks, j->r->err);
    if (!boxes || !chunks)
        return FSDPCK_ERR_NOMEM;
    *out = (struct dcp_tensor){ .nchunks = j->nchunks, .boxes = boxes, .chunks = chunks };
    for (uint64_t i = 0; i < j->nchunks; i++) {
        const uint64_t *box = j->boxes + j->chunk_order[i] * 2 * j->ndim;
        struct dcp_item_location location = { 0 };
        int rc = find_item(j, box, &k, &location);
        if (rc)
            return rc;
        if (j->ndim) {
            memcpy(boxes + i * 2 * j->ndim, box, 2 * j->ndim * sizeof *box);
            out->longest = box[j->ndim] > out->longest ? box[j->ndim] : out->longest;
        }
        chunks[i].item = location.offset;
        chunks[i].item_nbytes = location.nbytes;
        chunks[i].file = location.file;
        atomic_store(&chunks[i].state, location.packed ? DCP_PACKED : 0);
    }
    return 0;
}

static int check_cover(struct join *j, const struct dcp_tensor *t)
{
    struct fsdpck_cover *cover = fsdpck_cover_new(j->ndim, j->shape, t->nchunks, j->r->err);
    if (!cover)
        return FSDPCK_ERR_NOMEM;
    for (uint64_t i = 0; i < t->nchunks; i++)
        fsdpck_cover_add(cover, dcp_box(t, j->ndim, i), dcp_box(t, j->ndim, i) + j->ndim);
    int rc = fsdpck_cover_check(cover, j->r->file, j->name, j->r->err);
    fsdpck_cover_free(cover);
    return rc;
}

/* Takes the cost of n boxes of this tensor from the budget, before allocating them. */
static int charge(struct join *j, uint64_t nboxes)
{
    uint64_t cost = nboxes * (j->ndim + 1);
    if (cost > j->r->budget)
        return fsdpck_dcp_fail(j->r, FSDPCK_ERR_LIMIT, j->name,
                               "the file is too small for the %" PRIu64 " chunks that it lists", nboxes);
    j->r->budget -= cost;
    return 0;
}

static int run(struct join *j, fsdpck_node list, struct dcp_tensor *out)
{
    uint64_t listed = fsdpck_pickle_count(j->r->p, list), stored = j->e->nstored,
             most = listed > stored ? listed : stored;
    int rc = charge(j, listed + stored);
    if (rc)
        return rc;
    j->boxes = malloc((listed + 1) * (2 * j->ndim + 1) * sizeof *j->boxes);
    j->offsets = malloc((stored + 1) * (j->ndim + 1) * sizeof *j->offsets);
    j->locations = malloc((stored + 1) * sizeof *j->locations);
    j->chunk_order = malloc((most + 1) * sizeof *j->chunk_order);
    j->stored_order = malloc((most + 1) * sizeof *j->stored_order);
    if (!j->boxes || !j->offsets || !j->locations || !j->chunk_order || !j->stored_order)
        return fsdpck_error_nomem(j->r->err, (most + 1) * (2 * j->ndim + 1) * sizeof *j->boxes);
    if ((rc = read_boxes(j, list)) || (rc = read_stored(j)))
        return rc;
    sort(j->chunk_order, j->nchunks, j->boxes, j->ndim, 2 * j->ndim);
    sort(j->stored_order, stored, j->offsets, j->ndim, j->ndim);
    rc = join_chunks(j, out);
    return rc || j->r->catalogue ? rc : check_cover(j, out);
}

int fsdpck_dcp_read_chunks(struct dcp_reading *r, const struct dcp_entry *e, const char *name, uint32_t ndim,
                           const uint64_t *shape, struct dcp_tensor *out)
{
    fsdpck_node list = fsdpck_dcp_attribute(r, e->value, "chunks");
    struct join j = { .r = r, .e = e, .name = name, .ndim = ndim, .shape = shape };
    if (fsdpck_pickle_type(r->p, list) != FSDPCK_PICKLE_LIST)
        return fsdpck_dcp_fail(r, FSDPCK_ERR_FORMAT, name, "has no list of chunks");
    int rc = run(&j, list, out);
    free(j.boxes);
    free(j.offsets);
    free(j.locations);
    free(j.chunk_order);
    free(j.stored_order);
    return rc;
}
