/* SPDX-License-Identifier: Apache-2.0 */
/* `convert` and `reshard`: turn any source into a sharded checkpoint directory. Lays out the shard files, lets the
 * transfer move the payloads, then writes the bytes around them and commits. */
#include <fsdpck/convert.h>

#include <stdlib.h>
#include <string.h>

#include "base/ioutil.h"
#include "base/pool.h"
#include "commit/commit.h"
#include "engine/files.h"
#include "engine/source_impl.h"
#include "engine/stream.h"
#include "format/shard_finish.h"
#include "format/shard_name.h"
#include "hf/quantized.h"
#include "quant/quantized_config.h"
#include "verbs/base_check.h"
#include "verbs/convert_impl.h"
#include "verbs/convert_megatron.h"
#include "verbs/export_with.h"
#include "verbs/out_name.h"

#define ITEM_PIECE_NBYTES (1u << 20) /* a multiple of the hash block */

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
    struct fsdpck_transfer t = { .src = c->src,
                                 .selection = &c->selection,
                                 .files = c->files,
                                 .nfiles = c->nranks,
                                 .chunks = c->chunks.data,
                                 .nchunks = c->chunks.count,
                                 .opt = &c->opt,
                                 .contents = c->contents,
                                 .edit = c->edit,
                                 .compress = c->req->compress };
    int rc = fsdpck_transfer_run(&t, result, c->err);
    const uint32_t *entries = c->entries.data;
    for (size_t i = 0; !rc && i < t.nchunks; i++) {
        struct fsdpck_shard_entry *e = &shard_entries(&c->shards[t.chunks[i].file])[entries[i]];
        e->crc32 = t.chunks[i].crc32;
        e->has_content = t.chunks[i].has_content;
        e->content = t.chunks[i].content;
    }
    return rc;
}

static int copy_item(struct conversion *c, size_t i, struct fsdpck_shard_entry *e, uint8_t *buf)
{
    size_t item = c->selection.items[i].source;
    uint64_t nbytes = fsdpck_source_item(c->src, item)->nbytes;
    struct fsdpck_out_chunk to = { .file = 0,
                                   .payload = e->layout.begin,
                                   .hashes = fsdpck_shard_hashes(&c->shards[0], e) };
    struct fsdpck_stream s;
    fsdpck_stream_begin(&s, c->out, &to, 0, NULL, 0);
    while (s.at < nbytes) {
        uint64_t left = nbytes - s.at, n = left < ITEM_PIECE_NBYTES ? left : ITEM_PIECE_NBYTES;
        int rc = fsdpck_source_read_item_part(c->src, item, buf, n, s.at, c->err);
        if (!rc)
            rc = fsdpck_stream_write(&s, buf, n, c->err);
        if (rc)
            return rc;
    }
    e->crc32 = s.crc32;
    return 0;
}

static int copy_items(struct conversion *c)
{
    size_t first = c->shards[0].entries.count - c->selection.nitems;
    uint8_t *buf = malloc(ITEM_PIECE_NBYTES);
    int rc = buf ? 0 : fsdpck_error_nomem(c->err, ITEM_PIECE_NBYTES);
    for (size_t i = 0; !rc && i < c->selection.nitems; i++)
        rc = copy_item(c, i, &shard_entries(&c->shards[0])[first + i], buf);
    free(buf);
    return rc;
}

static int finish_shard(void *ctx, size_t rank, unsigned worker, struct fsdpck_error *err)
{
    struct conversion *c = ctx;
    struct fsdpck_shard *s = &c->shards[rank];
    (void)worker;
    int rc = fsdpck_shard_finish(s, c->out, (uint32_t)rank, c->manifest.save_id, err);
    c->names[rank] = (struct manifest_file){ .name = c->names[rank].name,
                                             .nbytes = s->nbytes,
                                             .table = s->table,
                                             .table_nbytes = s->table_nbytes,
                                             .table_hash = s->table_hash };
    return rc;
}

static int finish_shards(struct conversion *c)
{
    if (!(c->out = fsdpck_out_files_new(c->src->io, c->files, c->nranks, c->err)))
        return FSDPCK_ERR_NOMEM;
    int rc = copy_items(c);
    if (!rc)
        rc = fsdpck_source_check(c->src, c->err);
    return !rc ? fsdpck_pool_run(c->opt.nthreads, c->nranks, finish_shard, c, c->opt.stop, c->err) : rc;
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
        c->stored[i] = (struct manifest_chunk){ .tensor = chunks[i].tensor,
                                                .file = chunks[i].file,
                                                .offset = chunks[i].offset,
                                                .size = chunks[i].size,
                                                .item = l->begin,
                                                .item_nbytes = l->head_nbytes + l->payload_nbytes + l->tail_nbytes };
    }
    for (size_t i = 0; i < c->selection.nitems; i++) /* they were moved with the rest of a compressed shard */
        c->items[i].offset =
            shard_entries(&c->shards[0])[c->shards[0].entries.count - c->selection.nitems + i].layout.begin;
    for (size_t i = 0; i < c->selection.ntensors; i++) {
        c->tensors[i].has_content = c->contents[i].known;
        c->tensors[i].content = c->contents[i].content;
    }
    return 0;
}

static int write_directory(struct conversion *c)
{
    struct fsdpck_manifest *m = &c->manifest;
    int rc = list_chunks(c);
    if (rc)
        return rc;
    m->meshes = c->meshes;
    m->nmeshes = c->nmeshes;
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

/* ---- the whole conversion ---- */

static int write_all(struct conversion *c, struct fsdpck_transfer_result *result)
{
    int rc = name_files(c);
    if (!rc)
        rc = move_payloads(c, result);
    if (!rc)
        rc = finish_shards(c);
    if (!rc)
        rc = write_directory(c);
    if (!rc && c->src->for_megatron && c->manifest.has_metadata)
        rc = fsdpck_convert_write_megatron(c->src->io, c->commit, c->err);
    return rc;
}

/* Casting scales, or adding an adapter to codes, gives wrong weights. */
static int check_quantized(const struct conversion *c)
{
    const bool cast = c->req->select.cast;
    if (!c->edit && !cast)
        return 0;
    int rc = fsdpck_quantized_refuse(c->src, &c->selection, &c->assets,
                                     c->edit ? fsdpck_quantized_merge : fsdpck_quantized_cast, c->err);
    if (!rc && cast)
        fsdpck_quantized_note_uncast(&c->selection, &c->opt);
    return rc;
}

static int convert(struct conversion *c, struct fsdpck_transfer_result *result)
{
    const struct fsdpck_io *io = c->src->io;
    int rc = fsdpck_convert_lay_out(c);
    if (!rc)
        rc = fsdpck_base_check_quick(c->src, &c->opt, c->err);
    if (!rc)
        rc = fsdpck_assets_gather(c->src, c->req->assets, c->req->out, c->req->select.cast, c->req->select.dtype,
                                  &c->assets, c->err);
    if (!rc)
        rc = fsdpck_quantized_config_put(c->src, &c->selection, &c->assets, c->err);
    if (!rc)
        rc = check_quantized(c);
    if (!rc)
        fsdpck_convert_note_blocks(c);
    if (!rc)
        rc = fsdpck_draw_save_id(io, c->manifest.save_id, c->err);
    if (!rc)
        rc = fsdpck_commit_begin(io, c->req->out, FSDPCK_COMMIT_CHECKPOINT, "index.json", c->manifest.save_id,
                                 c->req->force, &c->commit, c->err);
    if (rc)
        return rc;
    rc = write_all(c, result);
    fsdpck_out_files_free(c->out);
    c->out = NULL;
    fsdpck_files_close_idle(c->src);
    if (rc) {
        fsdpck_commit_abandon(c->commit);
        return rc;
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

int fsdpck_convert(struct fsdpck_source *src, const struct fsdpck_convert_request *req,
                   const struct fsdpck_options *opt, struct fsdpck_transfer_result *result, struct fsdpck_error *err)
{
    return fsdpck_convert_with(src, req, NULL, opt, result, err);
}

int fsdpck_convert_with(struct fsdpck_source *src, const struct fsdpck_convert_request *req,
                        const struct fsdpck_edit *edit, const struct fsdpck_options *opt,
                        struct fsdpck_transfer_result *result, struct fsdpck_error *err)
{
    struct fsdpck_error own = { 0 };
    struct fsdpck_transfer_result none = { 0 };
    struct conversion c = {
        .src = src, .req = req, .edit = edit, .opt = fsdpck_source_options(src, opt), .err = err ? err : &own
    };
    int64_t start = src->io->now_ns(src->io->ctx);
    result = result ? result : &none;
    memset(result, 0, sizeof *result);
    int rc = fsdpck_out_is_folder(src->io, req->out, "a checkpoint is a folder (export writes one file)", c.err);
    if (!rc)
        rc = convert(&c, result);
    if (!rc) {
        result->ntensors = c.selection.ntensors;
        result->nleft_tensors = c.selection.nleft_tensors;
        result->nleft_items = c.selection.nleft_items;
        result->nfiles = c.nranks;
        for (uint32_t i = 0; i < c.nranks; i++)
            result->written_nbytes += c.shards[i].nbytes;
        fsdpck_uuid_format(c.manifest.save_id, result->save_id);
        result->seconds = (double)(src->io->now_ns(src->io->ctx) - start) * 1e-9;
    }
    free_conversion(&c);
    return rc;
}
