/* `convert` and `reshard`: any source into a sharded checkpoint directory. Lays the shard files out, lets the transfer move the payloads, then writes
 * what stands around them and commits. */
#include <fsdpck/convert.h>

#include <stdlib.h>
#include <string.h>

#include "tensor/box.h"
#include "commit/commit.h"
#include "base/ioutil.h"
#include "format/manifest.h"
#include "base/pool.h"
#include "format/shard.h"
#include "format/shard_name.h"
#include "engine/files.h"
#include "engine/source_impl.h"
#include "engine/stream.h"
#include "engine/transfer.h"
#include "verbs/base_look.h"
#include "verbs/export_with.h"

#define ITEM_PIECE_NBYTES (1u << 20) /* a multiple of the hash block */

struct conversion {
    struct fsdpck_source *src;
    const struct fsdpck_convert_request *req;
    const struct fsdpck_edit *edit;
    struct fsdpck_options opt;
    struct fsdpck_selection selection;
    struct fsdpck_arena arena;
    uint32_t nranks;
    struct fsdpck_shard *shards;       /* (nranks) */
    struct fsdpck_out_file *files;     /* (nranks) */
    struct manifest_file *names;       /* (nranks) */
    struct manifest_tensor *tensors;   /* (selection.ntensors) */
    struct fsdpck_vec chunks;          /* struct fsdpck_out_chunk */
    struct fsdpck_vec entries;         /* uint32_t: the chunk's entry in its shard */
    struct fsdpck_transfer_content *contents;
    struct manifest_chunk *stored;
    struct manifest_item *items;
    struct fsdpck_assets_out assets;
    struct fsdpck_manifest manifest;
    struct fsdpck_commit *commit;
    struct fsdpck_out_files *out;
    const char *assets_folder;
    struct fsdpck_error *err;
};

/* ---- layout ---- */

static int check_mesh(const struct fsdpck_mesh *mesh, struct fsdpck_error *err)
{
    if (mesh->ndim == 0 || mesh->ndim > FSDPCK_MAX_MESH_DIMS)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "a mesh of %u dimensions; it has 1 to %d", mesh->ndim, FSDPCK_MAX_MESH_DIMS);
    uint64_t n = 1;
    for (uint32_t d = 0; d < mesh->ndim; d++) {
        for (uint32_t k = 0; k < d; k++)
            if (strcmp(mesh->names[d], mesh->names[k]) == 0)
                return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "the mesh has two dimensions named '%s'", mesh->names[d]);
        n *= mesh->sizes[d]; /* at most 2^16 * 2^32 before the check */
        if (n == 0 || n > FSDPCK_MAX_RANKS)
            return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "a mesh has 1 to %u ranks", FSDPCK_MAX_RANKS);
    }
    return 0;
}

struct place { /* of a tensor being laid out */
    struct conversion *c;
    uint32_t tensor, rank;
};

static int add_chunk(void *ctx, const uint64_t *offset, const uint64_t *size)
{
    struct place *p = ctx;
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
    *chunk = (struct fsdpck_out_chunk){ .tensor = p->tensor, .file = p->rank, .offset = box, .size = box + t->ndim, .compressed = c->req->compress,
                                        .planes = fsdpck_planes_of(t->dtype) };
    return fsdpck_shard_add_chunk(s, p->tensor, t->dtype, t->ndim, box, box + t->ndim, c->err);
}

/* Every rank's chunks of one tensor, replicas but the owner left out. */
static int place_tensor(struct conversion *c, uint32_t tensor)
{
    const struct manifest_tensor *t = &c->tensors[tensor];
    const struct fsdpck_mesh *mesh = &c->req->mesh;
    struct place p = { .c = c, .tensor = tensor };
    uint32_t coord[FSDPCK_MAX_MESH_DIMS];
    uint64_t nelem = fsdpck_box_nelem(t->shape, t->ndim);
    for (p.rank = 0; t->alias_of < 0 && nelem && p.rank < c->nranks; p.rank++) {
        fsdpck_mesh_coordinate(mesh, p.rank, coord);
        if (!fsdpck_placement_owner(mesh, t->placements, tensor, coord))
            continue;
        int r = fsdpck_placement_boxes(mesh, t->placements, t->ndim, t->shape, coord, add_chunk, &p);
        if (r != 0)
            return r;
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
    c->tensors[i] = (struct manifest_tensor){ .name = x->name, .path = x->path, .npath = x->npath, .alias_of = x->alias_of, .dtype = x->dtype,
                                              .ndim = t->ndim, .shape = t->shape, .placements = placements };
    struct fsdpck_tensor named = *t;
    named.name = x->name;
    return fsdpck_convert_placements(c->req, &named, placements, c->err);
}

static int place_items(struct conversion *c)
{
    for (size_t i = 0; i < c->selection.nitems; i++) {
        const struct fsdpck_chosen_item *x = &c->selection.items[i];
        const struct fsdpck_item *from = fsdpck_source_item(c->src, x->source);
        c->items[i] = (struct manifest_item){ .name = x->name, .path = x->path, .npath = x->npath, .offset = c->shards[0].end, .nbytes = from->nbytes };
        int r = fsdpck_shard_add_item(&c->shards[0], (uint32_t)i, from->nbytes, c->err);
        if (r != 0)
            return r;
    }
    return 0;
}

/* Where in the files the chunks go, now that the layouts are complete. */
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

static int lay_out(struct conversion *c)
{
    int r = check_mesh(&c->req->mesh, c->err);
    if (r == 0 && c->req->compress && c->req->dcp == FSDPCK_DCP_ALWAYS)
        r = fsdpck_error_set(c->err, FSDPCK_ERR_USAGE, NULL, "a compressed checkpoint has no .metadata: PyTorch could not read its chunks");
    if (r == 0)
        r = fsdpck_selection_make(c->src, &c->req->select, c->edit ? FSDPCK_TREE_MODEL : FSDPCK_TREE_KEEP, &c->selection, c->err);
    if (r != 0)
        return r;
    c->nranks = (uint32_t)fsdpck_mesh_nranks(&c->req->mesh);
    r = allocate(c);
    for (uint32_t i = 0; r == 0 && i < c->selection.ntensors; i++) {
        r = describe_tensor(c, i);
        if (r == 0)
            r = place_tensor(c, i);
    }
    if (r == 0)
        r = place_items(c);
    if (r == 0)
        locate_chunks(c);
    return r;
}

/* ---- files ---- */

static int name_files(struct conversion *c)
{
    char name[FSDPCK_SHARD_NAME_MAX];
    bool in_place = fsdpck_commit_in_place(c->commit);
    for (uint32_t r = 0; r < c->nranks; r++) {
        fsdpck_shard_name(r, in_place, c->manifest.save_id, name);
        char *path = fsdpck_path_join(fsdpck_commit_dir(c->commit), name, c->err);
        c->files[r].path = path;
        c->names[r].name = path ? strrchr(path, '/') + 1 : NULL;
        int code = path ? fsdpck_commit_created(c->commit, name, c->err) : FSDPCK_ERR_NOMEM;
        if (code != 0)
            return code;
    }
    fsdpck_assets_name(in_place, c->manifest.save_id, name);
    c->assets_folder = fsdpck_arena_strndup(&c->arena, name, strlen(name), c->err);
    return c->assets_folder ? 0 : FSDPCK_ERR_NOMEM;
}

static int move_payloads(struct conversion *c, struct fsdpck_transfer_result *result)
{
    struct fsdpck_transfer t = { .src = c->src, .selection = &c->selection, .files = c->files, .nfiles = c->nranks, .chunks = c->chunks.data,
                                 .nchunks = c->chunks.count, .opt = &c->opt, .contents = c->contents, .edit = c->edit, .compress = c->req->compress };
    int r = fsdpck_transfer_run(&t, result, c->err);
    const uint32_t *entries = c->entries.data;
    for (size_t i = 0; r == 0 && i < t.nchunks; i++) {
        struct fsdpck_shard_entry *e = &shard_entries(&c->shards[t.chunks[i].file])[entries[i]];
        e->crc32 = t.chunks[i].crc32;
        e->has_content = t.chunks[i].has_content;
        e->content = t.chunks[i].content;
    }
    return r;
}

static int copy_item(struct conversion *c, size_t i, struct fsdpck_shard_entry *e, uint8_t *buf)
{
    size_t item = c->selection.items[i].source;
    uint64_t nbytes = fsdpck_source_item(c->src, item)->nbytes;
    struct fsdpck_out_chunk to = { .file = 0, .payload = e->layout.begin, .hashes = fsdpck_shard_hashes(&c->shards[0], e) };
    struct fsdpck_stream s;
    fsdpck_stream_begin(&s, c->out, &to, 0, NULL, 0);
    while (s.at < nbytes) {
        uint64_t left = nbytes - s.at, n = left < ITEM_PIECE_NBYTES ? left : ITEM_PIECE_NBYTES;
        int r = fsdpck_source_read_item(c->src, item, buf, n, s.at, c->err);
        if (r == 0)
            r = fsdpck_stream_write(&s, buf, n, c->err);
        if (r != 0)
            return r;
    }
    e->crc32 = s.crc32;
    return 0;
}

static int copy_items(struct conversion *c)
{
    size_t first = c->shards[0].entries.count - c->selection.nitems;
    uint8_t *buf = malloc(ITEM_PIECE_NBYTES);
    int r = buf ? 0 : fsdpck_error_nomem(c->err, ITEM_PIECE_NBYTES);
    for (size_t i = 0; r == 0 && i < c->selection.nitems; i++)
        r = copy_item(c, i, &shard_entries(&c->shards[0])[first + i], buf);
    free(buf);
    return r;
}

static int finish_shard(void *ctx, size_t rank, unsigned worker, struct fsdpck_error *err)
{
    struct conversion *c = ctx;
    struct fsdpck_shard *s = &c->shards[rank];
    (void)worker;
    int r = fsdpck_shard_finish(s, c->out, (uint32_t)rank, c->manifest.save_id, err);
    c->names[rank] = (struct manifest_file){ .name = c->names[rank].name, .nbytes = s->nbytes, .table = s->table, .table_nbytes = s->table_nbytes,
                                             .table_hash = s->table_hash };
    return r;
}

static int finish_shards(struct conversion *c)
{
    if (!(c->out = fsdpck_out_files_new(c->src->io, c->files, c->nranks, c->err)))
        return FSDPCK_ERR_NOMEM;
    int r = copy_items(c);
    return r == 0 ? fsdpck_pool_run(c->opt.nthreads, c->nranks, finish_shard, c, c->opt.stop, c->err) : r;
}

/* ---- the rest of the directory ---- */

static int list_chunks(struct conversion *c)
{
    const struct fsdpck_out_chunk *chunks = c->chunks.data;
    const uint32_t *entries = c->entries.data;
    c->stored = calloc(c->chunks.count + 1, sizeof *c->stored);
    if (!c->stored)
        return fsdpck_error_nomem(c->err, c->chunks.count * sizeof *c->stored);
    for (size_t i = 0; i < c->chunks.count; i++) {
        const struct fsdpck_item_layout *l = &shard_entries(&c->shards[chunks[i].file])[entries[i]].layout;
        c->stored[i] = (struct manifest_chunk){ .tensor = chunks[i].tensor, .file = chunks[i].file, .offset = chunks[i].offset, .size = chunks[i].size,
                                                .item = l->begin, .item_nbytes = l->head_nbytes + l->payload_nbytes + l->tail_nbytes };
    }
    for (size_t i = 0; i < c->selection.nitems; i++) /* they moved with the rest of a compressed shard */
        c->items[i].offset = shard_entries(&c->shards[0])[c->shards[0].entries.count - c->selection.nitems + i].layout.begin;
    for (size_t i = 0; i < c->selection.ntensors; i++) {
        c->tensors[i].has_content = c->contents[i].known;
        c->tensors[i].content = c->contents[i].content;
    }
    return 0;
}

static int write_directory(struct conversion *c)
{
    struct fsdpck_manifest *m = &c->manifest;
    int r = list_chunks(c);
    if (r != 0)
        return r;
    m->meshes = &c->req->mesh;
    m->nmeshes = 1;
    m->files = c->names;
    m->nfiles = c->nranks;
    m->tensors = c->tensors;
    m->ntensors = c->selection.ntensors;
    m->chunks = c->stored;
    m->nchunks = c->chunks.count;
    m->items = c->items;
    m->nitems = c->selection.nitems;
    m->assets = &c->assets;
    m->assets_folder = c->assets_folder;
    m->state = c->src->state;
    m->base = c->src->base;
    m->compressed = c->req->compress;
    return fsdpck_manifest_write(m, c->src->io, c->commit, c->req->dcp, &c->opt, c->err);
}

/* ---- the whole ---- */

static int write_all(struct conversion *c, struct fsdpck_transfer_result *result)
{
    int r = name_files(c);
    if (r == 0)
        r = move_payloads(c, result);
    if (r == 0)
        r = finish_shards(c);
    if (r == 0)
        r = write_directory(c);
    return r;
}

static int convert(struct conversion *c, struct fsdpck_transfer_result *result)
{
    const struct fsdpck_io *io = c->src->io;
    int r = lay_out(c);
    if (r == 0)
        r = fsdpck_base_look(c->src, &c->opt, c->err);
    if (r == 0)
        r = fsdpck_assets_gather(c->src, c->req->assets, c->req->select.cast, c->req->select.dtype, &c->assets, c->err);
    if (r == 0)
        r = fsdpck_draw_save_id(io, c->manifest.save_id, c->err);
    if (r == 0)
        r = fsdpck_commit_begin(io, c->req->out, FSDPCK_COMMIT_CHECKPOINT, "index.json", c->manifest.save_id, c->req->force, &c->commit, c->err);
    if (r != 0)
        return r;
    r = write_all(c, result);
    fsdpck_out_files_free(c->out);
    c->out = NULL;
    fsdpck_files_close_idle(c->src);
    if (r != 0) {
        fsdpck_commit_abandon(c->commit);
        return r;
    }
    return fsdpck_commit_finish(c->commit, c->err);
}

static void free_conversion(struct conversion *c)
{
    fsdpck_out_files_free(c->out);
    for (uint32_t r = 0; c->shards && r < c->nranks; r++)
        fsdpck_shard_free(&c->shards[r]);
    for (uint32_t r = 0; c->files && r < c->nranks; r++)
        free((char *)c->files[r].path);
    free(c->shards);
    free(c->files);
    free(c->names);
    free(c->tensors);
    free(c->contents);
    free(c->stored);
    free(c->items);
    fsdpck_vec_free(&c->chunks);
    fsdpck_vec_free(&c->entries);
    fsdpck_assets_free(&c->assets);
    fsdpck_selection_free(&c->selection);
    fsdpck_arena_free(&c->arena);
}

int fsdpck_convert(struct fsdpck_source *src, const struct fsdpck_convert_request *req, const struct fsdpck_options *opt,
                   struct fsdpck_transfer_result *result, struct fsdpck_error *err)
{
    return fsdpck_convert_with(src, req, NULL, opt, result, err);
}

int fsdpck_convert_with(struct fsdpck_source *src, const struct fsdpck_convert_request *req, const struct fsdpck_edit *edit,
                        const struct fsdpck_options *opt, struct fsdpck_transfer_result *result, struct fsdpck_error *err)
{
    struct fsdpck_error own = { 0 };
    struct fsdpck_transfer_result none = { 0 };
    struct conversion c = { .src = src, .req = req, .edit = edit, .opt = fsdpck_source_options(src, opt), .err = err ? err : &own };
    int64_t start = src->io->now_ns(src->io->ctx);
    result = result ? result : &none;
    memset(result, 0, sizeof *result);
    int r = convert(&c, result);
    if (r == 0) {
        result->ntensors = c.selection.ntensors;
        result->nfiles = c.nranks;
        for (uint32_t i = 0; i < c.nranks; i++)
            result->written_nbytes += c.shards[i].nbytes;
        fsdpck_uuid_format(c.manifest.save_id, result->save_id);
        result->seconds = (double)(src->io->now_ns(src->io->ctx) - start) * 1e-9;
    }
    free_conversion(&c);
    return r;
}
