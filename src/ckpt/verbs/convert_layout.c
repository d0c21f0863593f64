/* SPDX-License-Identifier: Apache-2.0 */
/* Computes the shard file and offset of each chunk of each tensor, before any byte is read. */
#include "verbs/convert_impl.h"

#include <stdlib.h>
#include <string.h>

#include "tensor/box.h"

static int check_mesh(const struct fsdpck_mesh *mesh, struct fsdpck_error *err)
{
    if (mesh->ndim == 0 || mesh->ndim > FSDPCK_MAX_MESH_DIMS)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "a mesh of %u dimensions; it has 1 to %d", mesh->ndim,
                                FSDPCK_MAX_MESH_DIMS);
    uint64_t n = 1;
    for (uint32_t d = 0; d < mesh->ndim; d++) {
        for (uint32_t k = 0; k < d; k++)
            if (strcmp(mesh->names[d], mesh->names[k]) == 0)
                return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "the mesh has two dimensions named '%s'",
                                        mesh->names[d]);
        n *= mesh->sizes[d]; /* at most 2^16 * 2^32 before the check */
        if (n == 0 || n > FSDPCK_MAX_RANKS)
            return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "a mesh has 1 to %u ranks", FSDPCK_MAX_RANKS);
    }
    return 0;
}

struct chunk_owner { /* a chunk's owner, for the tensor being laid out */
    struct conversion *c;
    uint32_t tensor, rank;
};

static int add_chunk(void *ctx, const uint64_t *offset, const uint64_t *size)
{
    struct chunk_owner *p = ctx;
    struct conversion *c = p->c;
    const struct manifest_tensor *t = &c->tensors[p->tensor];
    struct fsdpck_shard *s = &c->shards[p->rank];
    uint64_t *box = fsdpck_arena_array(&c->arena, 2 * (size_t)t->ndim, sizeof *box, c->err);
    struct fsdpck_out_chunk *chunk = box ? fsdpck_vec_push(&c->chunks, c->err) : NULL;
    uint32_t *entry = chunk ? fsdpck_vec_push(&c->entries, c->err) : NULL;
    if (!entry)
        return FSDPCK_ERR_NOMEM;
    if (t->ndim) {
        memcpy(box, offset, t->ndim * sizeof *box);
        memcpy(box + t->ndim, size, t->ndim * sizeof *box);
    }
    *entry = (uint32_t)s->entries.count;
    *chunk = (struct fsdpck_out_chunk){ .tensor = p->tensor,
                                        .file = p->rank,
                                        .offset = box,
                                        .size = box + t->ndim,
                                        .compressed = c->req->compress,
                                        .planes = fsdpck_planes_of(t->dtype) };
    return fsdpck_shard_add_chunk(s, p->tensor, t->dtype, t->ndim, box, box + t->ndim, c->err);
}

/* Places every rank's chunks of one tensor; replicas only at their owner. */
static int place_tensor(struct conversion *c, uint32_t tensor)
{
    const struct manifest_tensor *t = &c->tensors[tensor];
    const struct fsdpck_mesh *mesh = &c->req->mesh;
    struct chunk_owner p = { .c = c, .tensor = tensor };
    uint32_t coord[FSDPCK_MAX_MESH_DIMS];
    uint64_t nelem = fsdpck_box_nelem(t->shape, t->ndim);
    for (p.rank = 0; t->alias_of < 0 && nelem && p.rank < c->nranks; p.rank++) {
        fsdpck_mesh_coordinate(mesh, p.rank, coord);
        if (!fsdpck_placement_owner(mesh, t->placements, tensor, coord))
            continue;
        int rc = fsdpck_placement_boxes(mesh, t->placements, t->ndim, t->shape, coord, add_chunk, &p);
        if (rc)
            return rc;
    }
    return 0;
}

static int describe_tensor(struct conversion *c, uint32_t i)
{
    const struct fsdpck_chosen *x = &c->selection.tensors[i];
    const struct fsdpck_tensor *t = fsdpck_source_tensor(c->src, x->source);
    struct fsdpck_placement *placements = fsdpck_arena_array(&c->arena, c->req->mesh.ndim, sizeof *placements, c->err);
    if (!placements)
        return FSDPCK_ERR_NOMEM;
    c->tensors[i] = (struct manifest_tensor){ .name = x->name,
                                              .path = x->path,
                                              .npath = x->npath,
                                              .alias_of = x->alias_of,
                                              .dtype = x->dtype,
                                              .ndim = t->ndim,
                                              .shape = t->shape,
                                              .placements = placements };
    struct fsdpck_tensor named = *t;
    named.name = x->name;
    return fsdpck_convert_placements(c->req, &named, placements, c->err);
}

static int place_items(struct conversion *c)
{
    for (size_t i = 0; i < c->selection.nitems; i++) {
        const struct fsdpck_chosen_item *x = &c->selection.items[i];
        const struct fsdpck_item *from = fsdpck_source_item(c->src, x->source);
        c->items[i] = (struct manifest_item){
            .name = x->name, .path = x->path, .npath = x->npath, .offset = c->shards[0].end, .nbytes = from->nbytes
        };
        int rc = fsdpck_shard_add_item(&c->shards[0], (uint32_t)i, from->nbytes, c->err);
        if (rc)
            return rc;
    }
    return 0;
}

/* Computes the chunks' file offsets, when the layouts are complete. */
static void locate_chunks(struct conversion *c)
{
    struct fsdpck_out_chunk *chunks = c->chunks.data;
    const uint32_t *entries = c->entries.data;
    for (uint32_t r = 0; r < c->nranks; r++) {
        fsdpck_shard_close(&c->shards[r]);
        c->files[r].nbytes = c->shards[r].nbytes;
    }
    for (size_t i = 0; i < c->chunks.count; i++) {
        const struct fsdpck_shard *s = &c->shards[chunks[i].file];
        const struct fsdpck_shard_entry *e = &shard_entries(s)[entries[i]];
        chunks[i].payload = fsdpck_shard_payload(e);
        chunks[i].hashes = fsdpck_shard_hashes(s, e);
    }
}

static int allocate(struct conversion *c)
{
    size_t n = c->selection.ntensors, k = c->selection.nitems;
    c->chunks.item_nbytes = sizeof(struct fsdpck_out_chunk);
    c->entries.item_nbytes = sizeof(uint32_t);
    c->shards = calloc(c->nranks, sizeof *c->shards);
    c->files = calloc(c->nranks, sizeof *c->files);
    c->names = calloc(c->nranks, sizeof *c->names);
    c->tensors = calloc(n + 1, sizeof *c->tensors);
    c->contents = calloc(n + 1, sizeof *c->contents);
    c->items = calloc(k + 1, sizeof *c->items);
    if (!c->shards || !c->files || !c->names || !c->tensors || !c->contents || !c->items)
        return fsdpck_error_nomem(c->err, n * sizeof *c->tensors);
    for (uint32_t r = 0; r < c->nranks; r++) {
        fsdpck_shard_begin(&c->shards[r], r);
        c->shards[r].compressed = c->req->compress;
    }
    return 0;
}

/* Patterns match the output names. */
static int check_rules(struct conversion *c)
{
    const size_t n = c->selection.ntensors;
    if (!c->req->nrules && !c->req->nreplicate)
        return 0;
    struct fsdpck_placed *placed = calloc(n + 1, sizeof *placed);
    if (!placed)
        return fsdpck_error_nomem(c->err, n * sizeof *placed);
    for (size_t i = 0; i < n; i++) {
        const struct fsdpck_chosen *x = &c->selection.tensors[i];
        placed[i] = (struct fsdpck_placed){ x->name, fsdpck_source_tensor(c->src, x->source)->ndim, x->alias_of >= 0 };
    }
    int rc = fsdpck_convert_rules_check(c->req, placed, n, fsdpck_source_path(c->src), c->err);
    free(placed);
    return rc;
}

int fsdpck_convert_lay_out(struct conversion *c)
{
    int rc = check_mesh(&c->req->mesh, c->err);
    if (!rc && c->req->compress && c->req->dcp == FSDPCK_DCP_ALWAYS)
        rc = fsdpck_error_set(c->err, FSDPCK_ERR_USAGE, NULL,
                              "a compressed checkpoint has no .metadata: PyTorch could not read its chunks");
    if (!rc)
        rc = fsdpck_selection_make(c->src, &c->req->select, c->edit ? FSDPCK_TREE_MODEL : FSDPCK_TREE_KEEP,
                                   &c->selection, c->err);
    if (!rc)
        rc = check_rules(c);
    if (rc)
        return rc;
    c->nranks = (uint32_t)fsdpck_mesh_nranks(&c->req->mesh);
    rc = allocate(c);
    for (uint32_t i = 0; !rc && i < c->selection.ntensors; i++) {
        rc = describe_tensor(c, i);
        if (!rc)
            rc = place_tensor(c, i);
    }
    if (!rc)
        rc = place_items(c);
    if (!rc)
        locate_chunks(c);
    return rc;
}
