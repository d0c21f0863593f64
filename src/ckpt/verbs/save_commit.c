/* SPDX-License-Identifier: Apache-2.0 */
/* Reads back the chunk tables of all ranks, compares them with the list of tensors, and writes the index. Detects a
 * rank that failed, or that was called with another list. */
#include "verbs/save_commit.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/box.h"
#include "tensor/cover.h"
#include "base/ioutil.h"
#include "format/manifest.h"
#include "base/names.h"
#include "format/shard_name.h"
#include "format/table.h"
#include "base/vec.h"
#include "verbs/save_beside.h"

struct gatherer {
    const struct fsdpck_save_request *req;
    const struct fsdpck_options *opt;
    struct fsdpck_commit *commit;
    const uint8_t *save_id;
    struct fsdpck_arena arena;
    struct fsdpck_vec meshes;        /* struct fsdpck_mesh */
    struct manifest_tensor *tensors; /* (ntensors) */
    struct manifest_file *files;     /* (nranks) */
    struct fsdpck_table *tables;     /* (nranks) */
    struct fsdpck_vec chunks;        /* struct manifest_chunk */
    struct manifest_item *items;     /* (nitems) */
    bool compressed;                 /* by some rank */
    struct fsdpck_assets_out assets;
    char assets_folder[FSDPCK_SHARD_NAME_MAX];
    struct fsdpck_base base;
    struct fsdpck_error *err;
};

/* ---- the ranks' output ---- */

static int read_rank(struct gatherer *g, uint32_t rank)
{
    const struct fsdpck_io *io = g->opt->io;
    char name[FSDPCK_SHARD_NAME_MAX];
    struct fsdpck_trailer trailer;
    struct fsdpck_stat st;
    fsdpck_shard_name(rank, fsdpck_commit_in_place(g->commit), g->save_id, name);
    char *kept = fsdpck_arena_strndup(&g->arena, name, strlen(name), g->err);
    char *path = kept ? fsdpck_path_join(fsdpck_commit_dir(g->commit), name, g->err) : NULL;
    if (!path)
        return FSDPCK_ERR_NOMEM;
    int fd = io->open(io->ctx, path, FSDPCK_OPEN_READ, 0), r = fd < 0 ? fd : io->fstat(io->ctx, fd, &st);
    if (r == -ENOENT)
        r = fsdpck_error_set(g->err, FSDPCK_ERR_PEER, path, "rank %u did not write its shard", rank);
    else if (r < 0)
        r = fsdpck_error_sys(g->err, -r, path, "cannot open");
    else
        r = fsdpck_trailer_read(io, fd, path, st.nbytes, &trailer, g->err);
    if (r == 0 && memcmp(trailer.save_id, g->save_id, 16) != 0)
        r = fsdpck_error_set(g->err, FSDPCK_ERR_DAMAGED, path, "belongs to another save");
    if (r == 0)
        r = fsdpck_table_read(io, fd, path, &trailer, &g->tables[rank], g->err);
    if (r == 0)
        g->files[rank] = (struct manifest_file){ .name = kept,
                                                 .nbytes = st.nbytes,
                                                 .table = trailer.table,
                                                 .table_nbytes = trailer.table_nbytes,
                                                 .table_hash = trailer.table_hash };
    if (fd >= 0)
        io->close(io->ctx, fd);
    free(path);
    return r;
}

/* ---- the list of tensors ---- */

static bool same_mesh(const struct fsdpck_mesh *a, const struct fsdpck_mesh *b)
{
    if (a->ndim != b->ndim)
        return false;
    for (uint32_t d = 0; d < a->ndim; d++)
        if (a->sizes[d] != b->sizes[d] || strcmp(a->names[d], b->names[d]) != 0)
            return false;
    if (!a->ranks || !b->ranks)
        return a->ranks == b->ranks;
    return memcmp(a->ranks, b->ranks, fsdpck_mesh_nranks(a) * sizeof *a->ranks) == 0;
}

static int mesh_number(struct gatherer *g, const struct fsdpck_mesh *mesh, int32_t *number)
{
    const struct fsdpck_mesh *list = g->meshes.data;
    for (*number = 0; (size_t)*number < g->meshes.count; ++*number)
        if (same_mesh(&list[*number], mesh))
            return 0;
    struct fsdpck_mesh *m = fsdpck_vec_push(&g->meshes, g->err);
    if (!m)
        return FSDPCK_ERR_NOMEM;
    *m = *mesh;
    return 0;
}

/* Tensors and items share one space of names, as they do in .metadata. */
static int add_name(struct gatherer *g, struct fsdpck_names *names, const char *name, size_t number)
{
    size_t old;
    int rc = fsdpck_names_add(names, name, number, &old, g->err);
    return !rc && old != SIZE_MAX ? fsdpck_error_set(g->err, FSDPCK_ERR_USAGE, NULL, "'%s' is in the list twice", name)
                                  : rc;
}

/* The path of a name that has none. */
static const struct fsdpck_key *flat_path(struct gatherer *g, const char *name)
{
    struct fsdpck_key *flat = fsdpck_arena_array(&g->arena, 1, sizeof *flat, g->err);
    if (flat)
        flat->str = name;
    return flat;
}

static int describe(struct gatherer *g, struct fsdpck_names *names, size_t i)
{
    const struct fsdpck_save_tensor *t = &g->req->tensors[i];
    struct manifest_tensor *m = &g->tensors[i];
    int rc = add_name(g, names, t->name, i);
    if (rc)
        return rc;
    const struct fsdpck_key *path = t->npath ? t->path : flat_path(g, t->name);
    if (!path)
        return FSDPCK_ERR_NOMEM;
    *m = (struct manifest_tensor){ .name = t->name,
                                   .path = path,
                                   .npath = t->npath ? t->npath : 1,
                                   .alias_of = -1,
                                   .dtype = t->dtype,
                                   .ndim = t->ndim,
                                   .shape = t->shape,
                                   .mesh = -1,
                                   .placements = t->placements };
    if (t->alias_of) {
        size_t to = fsdpck_names_find(names, t->alias_of);
        if (to >= i || g->tensors[to].alias_of >= 0)
            return fsdpck_error_set(g->err, FSDPCK_ERR_USAGE, NULL,
                                    "'%s' is an alias of '%s', which is not a tensor listed before it", t->name,
                                    t->alias_of);
        m->alias_of = (int64_t)to;
        return 0;
    }
    m->has_content = true;
    return t->mesh ? mesh_number(g, t->mesh, &m->mesh) : 0;
}

static int describe_item(struct gatherer *g, struct fsdpck_names *names, size_t i)
{
    const struct fsdpck_save_item *t = &g->req->items[i];
    int rc = add_name(g, names, t->name, g->req->ntensors + i);
    if (rc)
        return rc;
    const struct fsdpck_key *path = t->npath ? t->path : flat_path(g, t->name);
    g->items[i] = (struct manifest_item){ .name = t->name, .path = path, .npath = t->npath ? t->npath : 1 };
    return path ? 0 : FSDPCK_ERR_NOMEM;
}

static int describe_all(struct gatherer *g)
{
    struct fsdpck_names names = { 0 };
    int rc = 0;
    for (size_t i = 0; !rc && i < g->req->ntensors; i++)
        rc = describe(g, &names, i);
    for (size_t i = 0; !rc && i < g->req->nitems; i++)
        rc = describe_item(g, &names, i);
    fsdpck_names_free(&names);
    return rc;
}

/* ---- comparing the two ---- */

struct expected_chunks { /* a tensor's chunks on one rank */
    struct gatherer *g;
    uint32_t tensor, rank;
    uint64_t at, end; /* range of entries of the rank's table */
};

static int mismatch(struct expected_chunks *x)
{
    fsdpck_error_set(
        x->g->err, FSDPCK_ERR_FORMAT, x->g->files[x->rank].name,
        "rank %u did not write the chunks that the placement gives it; do all ranks pass the same list of tensors?",
        x->rank);
    fsdpck_error_tensor(x->g->err, x->g->tensors[x->tensor].name);
    return FSDPCK_ERR_FORMAT;
}

static int take_entry(struct expected_chunks *x)
{
    struct gatherer *g = x->g;
    struct manifest_tensor *t = &g->tensors[x->tensor];
    const struct fsdpck_table *table = &g->tables[x->rank];
    const struct fsdpck_table_entry *e = &table->entries[x->at++];
    const uint64_t *offset = table->dims + e->dims, *size = offset + e->ndim;
    if (e->ndim != t->ndim || !fsdpck_box_inside(t->ndim, offset, size, t->shape) ||
        e->decoded != fsdpck_box_nelem(size, t->ndim) * fsdpck_dtype_info(t->dtype)->nbytes)
        return mismatch(x);
    bool packed = e->codec != FSDPCK_CODEC_STORED;
    if (packed != g->req->compress)
        return fsdpck_error_set(g->err, FSDPCK_ERR_USAGE, g->files[x->rank].name,
                                "rank %u wrote %scompressed chunks, unlike rank 0", x->rank, packed ? "" : "un");
    g->compressed |= packed;
    struct manifest_chunk *c = fsdpck_vec_push(&g->chunks, g->err);
    if (!c)
        return FSDPCK_ERR_NOMEM;
    *c = (struct manifest_chunk){ .tensor = x->tensor,
                                  .file = x->rank,
                                  .offset = offset,
                                  .size = size,
                                  .item = e->item,
                                  .item_nbytes = e->item_nbytes };
    struct fsdpck_content content;
    fsdpck_content_load(&content, e->content);
    t->has_content &= e->has_content;
    fsdpck_content_add(&t->content, &content);
    return 0;
}

static int expect_box(void *ctx, const uint64_t *offset, const uint64_t *size)
{
    struct expected_chunks *x = ctx;
    const struct fsdpck_table *table = &x->g->tables[x->rank];
    uint32_t n = x->g->tensors[x->tensor].ndim;
    const uint64_t *dims = x->at < x->end ? table->dims + table->entries[x->at].dims : NULL;
    if (!dims || table->entries[x->at].ndim != n ||
        (n && (memcmp(dims, offset, n * 8) != 0 || memcmp(dims + n, size, n * 8) != 0)))
        return mismatch(x);
    return take_entry(x);
}

static int take_rank(struct gatherer *g, uint32_t tensor, uint32_t rank)
{
    const struct fsdpck_save_tensor *t = &g->req->tensors[tensor];
    struct expected_chunks x = { .g = g, .tensor = tensor, .rank = rank };
    uint32_t coord[FSDPCK_MAX_MESH_DIMS];
    uint64_t count;
    int rc = 0;
    x.at = fsdpck_table_find(&g->tables[rank], FSDPCK_CHUNK_TENSOR, tensor, &count);
    x.end = x.at + count;
    while (!rc && !t->mesh && x.at < x.end)
        rc = take_entry(&x);
    if (t->mesh && !t->alias_of && fsdpck_box_nelem(t->shape, t->ndim) &&
        fsdpck_mesh_coordinate(t->mesh, rank, coord) && fsdpck_placement_owner(t->mesh, t->placements, tensor, coord))
        rc = fsdpck_placement_boxes(t->mesh, t->placements, t->ndim, t->shape, coord, expect_box, &x);
    return !rc && x.at != x.end ? mismatch(&x) : rc;
}

static int by_offset(const void *a, const void *b, void *ndim)
{
    const struct manifest_chunk *x = a, *y = b;
    for (uint32_t d = 0; d < *(const uint32_t *)ndim; d++)
        if (x->offset[d] != y->offset[d])
            return x->offset[d] < y->offset[d] ? -1 : 1;
    return 0;
}

/* Listed boxes come from all ranks in any order: sorts them, and checks that they fill the tensor. */
static int check_explicit(struct gatherer *g, uint32_t tensor, size_t first)
{
    struct manifest_tensor *t = &g->tensors[tensor];
    struct manifest_chunk *chunks = g->chunks.data;
    size_t n = g->chunks.count - first;
    if (n > 1)
        qsort_r(chunks + first, n, sizeof *chunks, by_offset, &t->ndim);
    struct fsdpck_cover *cover = fsdpck_cover_new(t->ndim, t->shape, n, g->err);
    if (!cover)
        return FSDPCK_ERR_NOMEM;
    for (size_t i = 0; i < n; i++)
        fsdpck_cover_add(cover, chunks[first + i].offset, chunks[first + i].size);
    int rc = fsdpck_cover_check(cover, NULL, t->name, g->err);
    fsdpck_cover_free(cover);
    return rc;
}

static int take_tensor(struct gatherer *g, uint32_t tensor)
{
    size_t first = g->chunks.count;
    for (uint32_t rank = 0; rank < g->req->nranks; rank++) {
        int rc = take_rank(g, tensor, rank);
        if (rc)
            return rc;
    }
    const struct fsdpck_save_tensor *t = &g->req->tensors[tensor];
    return t->mesh || t->alias_of ? 0 : check_explicit(g, tensor, first);
}

static int fail_item(struct gatherer *g, size_t i, const char *what)
{
    fsdpck_error_set(g->err, FSDPCK_ERR_USAGE, NULL, "%s; exactly one rank passes its data", what);
    fsdpck_error_tensor(g->err, g->items[i].name);
    return FSDPCK_ERR_USAGE;
}

static int take_item(struct gatherer *g, uint32_t item)
{
    bool found = false;
    for (uint32_t rank = 0; rank < g->req->nranks; rank++) {
        uint64_t count, at = fsdpck_table_find(&g->tables[rank], FSDPCK_CHUNK_ITEM, item, &count);
        if (count > 1 || (count && found))
            return fail_item(g, item, "an item is stored twice");
        if (!count)
            continue;
        const struct fsdpck_table_entry *e = &g->tables[rank].entries[at];
        g->items[item].file = rank;
        g->items[item].offset = e->item;
        g->items[item].nbytes = e->item_nbytes;
        found = true;
    }
    return found ? 0 : fail_item(g, item, "no rank stored an item");
}

/* A rank's table has no tensor or item outside the lists. */
static int check_ordinals(const struct gatherer *g, uint32_t rank)
{
    const struct fsdpck_table *t = &g->tables[rank];
    for (uint64_t i = 0; i < t->nentries; i++) {
        bool is_item = t->entries[i].kind == FSDPCK_CHUNK_ITEM;
        if (t->entries[i].ordinal >= (is_item ? g->req->nitems : g->req->ntensors))
            return fsdpck_error_set(g->err, FSDPCK_ERR_FORMAT, g->files[rank].name,
                                    "rank %u wrote %s that rank 0 does not list", rank,
                                    is_item ? "an item" : "a tensor");
    }
    return 0;
}

/* ---- the whole index ---- */

static int gather(struct gatherer *g)
{
    int rc = describe_all(g);
    for (uint32_t rank = 0; !rc && rank < g->req->nranks; rank++)
        rc = read_rank(g, rank);
    for (size_t i = 0; !rc && i < g->req->ntensors; i++)
        rc = take_tensor(g, (uint32_t)i);
    for (size_t i = 0; !rc && i < g->req->nitems; i++)
        rc = take_item(g, (uint32_t)i);
    for (uint32_t rank = 0; !rc && rank < g->req->nranks; rank++)
        rc = check_ordinals(g, rank);
    return rc;
}

static int write_manifest(struct gatherer *g)
{
    struct fsdpck_manifest m = { .meshes = g->meshes.data,
                                 .nmeshes = g->meshes.count,
                                 .files = g->files,
                                 .nfiles = g->req->nranks,
                                 .tensors = g->tensors,
                                 .ntensors = g->req->ntensors,
                                 .chunks = g->chunks.data,
                                 .nchunks = g->chunks.count,
                                 .items = g->items,
                                 .nitems = g->req->nitems,
                                 .compressed = g->compressed,
                                 .assets = &g->assets,
                                 .assets_folder = g->assets_folder,
                                 .state = g->req->state,
                                 .base = g->req->base ? &g->base : NULL };
    memcpy(m.save_id, g->save_id, 16);
    fsdpck_assets_name(fsdpck_commit_in_place(g->commit), g->save_id, g->assets_folder);
    return fsdpck_manifest_write(&m, g->opt->io, g->commit, g->req->dcp, g->opt, g->err);
}

int fsdpck_save_gather(const struct fsdpck_save_request *req, const struct fsdpck_options *opt,
                       struct fsdpck_commit *commit, const uint8_t save_id[16], struct fsdpck_error *err)
{
    struct fsdpck_error own = { 0 };
    struct gatherer g = { .req = req,
                          .opt = opt,
                          .commit = commit,
                          .save_id = save_id,
                          .meshes = FSDPCK_VEC(struct fsdpck_mesh),
                          .chunks = FSDPCK_VEC(struct manifest_chunk),
                          .err = err ? err : &own };
    g.tensors = calloc(req->ntensors + 1, sizeof *g.tensors);
    g.items = calloc(req->nitems + 1, sizeof *g.items);
    g.files = calloc(req->nranks, sizeof *g.files);
    g.tables = calloc(req->nranks, sizeof *g.tables);
    int rc =
        g.tensors && g.items && g.files && g.tables ? 0 : fsdpck_error_nomem(err, req->ntensors * sizeof *g.tensors);
    if (!rc)
        rc = gather(&g);
    if (!rc)
        rc = fsdpck_save_assets(req, opt, fsdpck_commit_target(commit), &g.assets, g.err);
    if (!rc && req->base)
        rc = fsdpck_save_base(req->base, opt->io, &g.arena, &g.base, g.err);
    if (!rc)
        rc = write_manifest(&g);
    for (uint32_t i = 0; g.tables && i < req->nranks; i++)
        fsdpck_table_free(&g.tables[i]);
    free(g.tensors);
    free(g.items);
    free(g.files);
    free(g.tables);
    fsdpck_vec_free(&g.meshes);
    fsdpck_vec_free(&g.chunks);
    fsdpck_assets_free(&g.assets);
    fsdpck_arena_free(&g.arena);
    return rc;
}
