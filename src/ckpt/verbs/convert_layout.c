/* SPDX-License-Identifier: Apache-2.0 */
/* Computes the shard file and offset of each chunk of each tensor, before any byte is read. */
#include "verbs/convert_impl.h"

#include <stdlib.h>
#include <string.h>

#include "tensor/box.h"

int fsdpck_convert_add_chunk(struct conversion *c, uint32_t tensor, uint32_t rank, const uint64_t *offset,
                             const uint64_t *size)
{
    const struct manifest_tensor *t = &c->tensors[tensor];
    struct fsdpck_shard *s = &c->shards[rank];
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
    *chunk = (struct fsdpck_out_chunk){ .tensor = tensor,
                                        .file = rank,
                                        .offset = box,
                                        .size = box + t->ndim,
                                        .compressed = c->req->compress,
                                        .planes = fsdpck_planes_of(t->dtype) };
    return fsdpck_shard_add_chunk(s, tensor, t->dtype, t->ndim, box, box + t->ndim, c->err);
}

uint32_t fsdpck_convert_rank(const struct fsdpck_mesh *mesh, uint32_t position, uint32_t *coord)
{
    struct fsdpck_mesh in_order = *mesh;
    in_order.ranks = NULL;
    fsdpck_mesh_coordinate(&in_order, position, coord);
    return mesh->ranks ? mesh->ranks[position] : position;
}

struct chunk_owner { /* a chunk's owner, for the tensor being laid out */
    struct conversion *c;
    uint32_t tensor, rank;
};

static int add_chunk(void *ctx, const uint64_t *offset, const uint64_t *size)
{
    struct chunk_owner *p = ctx;
    return fsdpck_convert_add_chunk(p->c, p->tensor, p->rank, offset, size);
}

/* Places every rank's chunks of one tensor; replicas only at their owner. */
static int place_tensor(struct conversion *c, uint32_t tensor)
{
    const struct manifest_tensor *t = &c->tensors[tensor];
    const struct fsdpck_mesh *mesh = &c->meshes[t->mesh];
    const uint32_t nranks = (uint32_t)fsdpck_mesh_nranks(mesh);
    struct chunk_owner p = { .c = c, .tensor = tensor };
    uint32_t coord[FSDPCK_MAX_MESH_DIMS];
    uint64_t nelem = fsdpck_box_nelem(t->shape, t->ndim);
    if (t->alias_of < 0 && nelem && fsdpck_convert_cuts_blocks(c, tensor))
        return fsdpck_convert_place_blocks(c, tensor);
    for (uint32_t i = 0; t->alias_of < 0 && nelem && i < nranks; i++) {
        p.rank = fsdpck_convert_rank(mesh, i, coord);
        if (!fsdpck_placement_owner(mesh, t->placements, tensor, coord))
            continue;
        int rc = fsdpck_placement_boxes(mesh, t->placements, t->ndim, t->shape, coord, add_chunk, &p);
        if (rc)
            return rc;
    }
    return 0;
}

/* Makes the mesh of the ranks at coordinate `at` of dimension `dim`. */
static int make_part(struct conversion *c, uint32_t dim, uint32_t at, struct fsdpck_mesh *out)
{
    const uint32_t n = c->nranks / c->req->mesh.sizes[dim];
    uint32_t coord[FSDPCK_MAX_MESH_DIMS], k = 0, *ranks = fsdpck_arena_array(&c->arena, n, sizeof *ranks, c->err);
    if (!ranks)
        return FSDPCK_ERR_NOMEM;
    for (uint32_t rank = 0; rank < c->nranks; rank++) {
        fsdpck_mesh_coordinate(&c->req->mesh, rank, coord);
        if (coord[dim] == at)
            ranks[k++] = rank;
    }
    *out = c->req->mesh;
    out->sizes[dim] = 1;
    out->ranks = ranks;
    return 0;
}

static int find_part(struct conversion *c, const struct fsdpck_convert_place *place, int32_t *mesh)
{
    int32_t *known = &c->expert_meshes[place->only_at];
    int rc = *known ? 0 : make_part(c, place->only_dim, place->only_at, &c->meshes[c->nmeshes]);
    if (!rc && !*known)
        *known = (int32_t)c->nmeshes++;
    *mesh = *known;
    return rc;
}

static int describe_tensor(struct conversion *c, uint32_t i)
{
    const struct fsdpck_chosen *x = &c->selection.tensors[i];
    const struct fsdpck_tensor *t = fsdpck_source_tensor(c->src, x->source);
    const uint32_t ndim = c->req->mesh.ndim;
    struct fsdpck_placement *placements = fsdpck_arena_array(&c->arena, ndim, sizeof *placements, c->err);
    struct fsdpck_convert_place place;
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
    int rc = fsdpck_place(c->req, c->req->by_family ? &c->by_family : NULL, &named, &place, c->err);
    memcpy(placements, place.on, ndim * sizeof *placements);
    if (!rc && place.only_dim < ndim)
        rc = find_part(c, &place, &c->tensors[i].mesh);
    return rc;
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

static int make_meshes(struct conversion *c)
{
    int rc = c->req->by_family ? fsdpck_by_family_begin(c->src, c->req, &c->by_family, c->err) : 0;
    if (rc)
        return rc;
    const size_t nparts = c->req->by_family ? c->by_family.nep : 0;
    c->meshes = fsdpck_arena_array(&c->arena, 1 + nparts, sizeof *c->meshes, c->err);
    c->expert_meshes = fsdpck_arena_array(&c->arena, nparts, sizeof *c->expert_meshes, c->err);
    if (!c->meshes || !c->expert_meshes)
        return FSDPCK_ERR_NOMEM;
    c->meshes[0] = c->req->mesh;
    c->nmeshes = 1;
    return 0;
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
    struct fsdpck_convert_tensor *placed = calloc(n + 1, sizeof *placed);
    if (!placed)
        return fsdpck_error_nomem(c->err, n * sizeof *placed);
    for (size_t i = 0; i < n; i++) {
        const struct fsdpck_chosen *x = &c->selection.tensors[i];
        placed[i] =
            (struct fsdpck_convert_tensor){ x->name, fsdpck_source_tensor(c->src, x->source)->ndim, x->alias_of >= 0 };
    }
    int rc = fsdpck_convert_rules_check(c->req, placed, n, fsdpck_source_path(c->src), c->err);
    free(placed);
    return rc;
}

int fsdpck_convert_lay_out(struct conversion *c)
{
    int rc = fsdpck_convert_mesh_check(&c->req->mesh, c->err);
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
    fsdpck_selection_note_left(&c->selection, &c->req->select, &c->opt);
    c->nranks = (uint32_t)fsdpck_mesh_nranks(&c->req->mesh);
    rc = allocate(c);
    if (!rc)
        rc = make_meshes(c);
    if (!rc)
        rc = fsdpck_convert_find_blocks(c);
    for (uint32_t i = 0; !rc && i < c->selection.ntensors; i++) {
        rc = describe_tensor(c, i);
        if (!rc)
            rc = place_tensor(c, i);
    }
    if (!rc && c->req->by_family)
        rc = fsdpck_by_family_end(&c->by_family, c->src, &c->opt, c->err);
    if (!rc)
        rc = place_items(c);
    if (!rc)
        locate_chunks(c);
    return rc;
}
