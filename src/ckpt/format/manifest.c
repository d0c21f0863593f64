/* SPDX-License-Identifier: Apache-2.0 */
/* Writes index.json and .metadata from one set of facts. Pure except for writing the two files. */
#include "format/manifest.h"

#include <fsdpck/fsdpck.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "torch/dcp/metadata.h"
#include "base/ioutil.h"
#include "format/table.h"
#include "base/json_write.h"
#include "base/paths.h"

#define METADATA_MAX_CHUNKS 2000000u /* with more chunks, torch needs minutes to unpickle it */

/* ---- .metadata ---- */

static bool wants_metadata(const struct fsdpck_manifest *m, enum fsdpck_dcp_mode mode, const struct fsdpck_options *opt)
{
    if (m->compressed && opt && opt->note)
        opt->note(opt->ctx,
                  "compressed: fsdpck reads it, PyTorch does not ('fsdpck convert' without --compress turns it back)");
    if (m->compressed)
        return false;
    if (mode != FSDPCK_DCP_AUTO)
        return mode == FSDPCK_DCP_ALWAYS;
    if (m->nchunks <= METADATA_MAX_CHUNKS)
        return true;
    if (opt && opt->note)
        opt->note(opt->ctx,
                  "more than 2 million chunks: .metadata for PyTorch is not written (--dcp always writes it)");
    return false;
}

static size_t first_chunk(const struct fsdpck_manifest *m, size_t tensor)
{
    size_t low = 0, high = m->nchunks;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (m->chunks[mid].tensor < tensor)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* Returns the tensor that stores the bytes of `t`; an alias lists that tensor's chunks. */
static size_t stored_by(const struct fsdpck_manifest *m, size_t t)
{
    return m->tensors[t].alias_of >= 0 ? (size_t)m->tensors[t].alias_of : t;
}

static void write_names(const struct fsdpck_manifest *m, struct fsdpck_dcp_writer *w)
{
    for (size_t i = 0; i < m->ntensors; i++) {
        size_t stored = stored_by(m, i);
        const struct manifest_tensor *t = &m->tensors[stored];
        fsdpck_dcp_tensor(w, m->tensors[i].name, t->dtype, t->ndim, t->shape);
        for (size_t c = first_chunk(m, stored); c < m->nchunks && m->chunks[c].tensor == stored; c++)
            fsdpck_dcp_chunk(w, t->ndim, m->chunks[c].offset, m->chunks[c].size);
        fsdpck_dcp_tensor_end(w);
    }
    for (size_t i = 0; i < m->nitems; i++)
        fsdpck_dcp_item(w, m->items[i].name);
    fsdpck_dcp_paths_begin(w);
    for (size_t i = 0; i < m->ntensors; i++)
        fsdpck_dcp_path(w, m->tensors[i].name, m->tensors[i].path, m->tensors[i].npath);
    for (size_t i = 0; i < m->nitems; i++)
        fsdpck_dcp_path(w, m->items[i].name, m->items[i].path, m->items[i].npath);
}

static void write_places(const struct fsdpck_manifest *m, struct fsdpck_dcp_writer *w)
{
    fsdpck_dcp_storage_begin(w);
    for (size_t i = 0; i < m->ntensors; i++) {
        size_t stored = stored_by(m, i), first = first_chunk(m, stored);
        for (size_t c = first; c < m->nchunks && m->chunks[c].tensor == stored; c++)
            fsdpck_dcp_storage(w, m->tensors[i].name, m->tensors[stored].ndim, m->chunks[c].offset, c - first,
                               m->files[m->chunks[c].file].name, m->chunks[c].item, m->chunks[c].item_nbytes);
    }
    for (size_t i = 0; i < m->nitems; i++)
        fsdpck_dcp_storage(w, m->items[i].name, 0, NULL, 0, m->files[m->items[i].file].name, m->items[i].offset,
                           m->items[i].nbytes);
}

static int write_metadata(struct fsdpck_manifest *m, const struct fsdpck_io *io, const char *path,
                          struct fsdpck_error *err)
{
    struct fsdpck_dcp_writer w = { 0 };
    fsdpck_dcp_begin(&w);
    write_names(m, &w);
    write_places(m, &w);
    fsdpck_dcp_end(&w);
    int rc = fsdpck_text_check(&w.text, err);
    if (!rc)
        rc = fsdpck_write_file(io, path, w.text.data, w.text.nbytes, err);
    if (!rc) {
        m->has_metadata = true;
        m->metadata_nbytes = w.text.nbytes;
        fsdpck_hash(w.text.data, w.text.nbytes, &m->metadata_hash);
    }
    fsdpck_dcp_free(&w);
    return rc;
}

/* ---- index.json ---- */

static void write_head(const struct fsdpck_manifest *m, struct fsdpck_text *t)
{
    char uuid[37], created[32];
    time_t seconds = (time_t)(m->created_ns / 1000000000);
    struct tm utc;
    fsdpck_uuid_format(m->save_id, uuid);
    gmtime_r(&seconds, &utc);
    strftime(created, sizeof created, "%Y-%m-%dT%H:%M:%SZ", &utc);
    fsdpck_text_printf(t,
                       "{\"format\":\"fsdpck\",\"version\":%d,\"requires\":[%s],\n\"save_id\":\"%s\",\n\"writer\":"
                       "\"fsdpck %s\",\n\"created\":\"%s\",\n"
                       "\"block_bytes\":%u,\n",
                       FSDPCK_FORMAT_VERSION, m->compressed ? "\"" FSDPCK_FEATURE_COMPRESSION "\"" : "", uuid,
                       fsdpck_version(), created, FSDPCK_BLOCK_NBYTES);
}

static void write_meshes(const struct fsdpck_manifest *m, struct fsdpck_text *t)
{
    fsdpck_text_printf(t, "\"meshes\":[");
    for (size_t i = 0; i < m->nmeshes; i++) {
        const struct fsdpck_mesh *mesh = &m->meshes[i];
        uint64_t nranks = fsdpck_mesh_nranks(mesh);
        fsdpck_text_printf(t, "%s\n{\"dims\":[", i ? "," : "");
        for (uint32_t d = 0; d < mesh->ndim; d++) {
            fsdpck_text_printf(t, "%s", d ? "," : "");
            fsdpck_text_json(t, mesh->names[d]);
        }
        fsdpck_text_printf(t, "],\"sizes\":[");
        for (uint32_t d = 0; d < mesh->ndim; d++)
            fsdpck_text_printf(t, "%s%u", d ? "," : "", mesh->sizes[d]);
        for (uint64_t r = 0; mesh->ranks && r < nranks; r++)
            fsdpck_text_printf(t, "%s%u", r ? "," : "],\"ranks\":[", mesh->ranks[r]);
        fsdpck_text_printf(t, "]}");
    }
    fsdpck_text_printf(t, "],\n");
}

static void write_files(const struct fsdpck_manifest *m, struct fsdpck_text *t)
{
    fsdpck_text_printf(t, "\"files\":[");
    for (size_t i = 0; i < m->nfiles; i++) {
        const struct manifest_file *f = &m->files[i];
        fsdpck_text_printf(t, "%s\n{\"path\":", i ? "," : "");
        fsdpck_text_json(t, f->name);
        fsdpck_text_printf(t, ",\"rank\":%zu,\"bytes\":%" PRIu64 ",\"table\":[%" PRIu64 ",%" PRIu64 "],\"hash\":", i,
                           f->nbytes, f->table, f->table_nbytes);
        fsdpck_text_hex(t, f->table_hash.bytes, 16);
        fsdpck_text_printf(t, "}");
    }
    fsdpck_text_printf(t, "],\n");
}

static bool is_flat(const char *name, const struct fsdpck_key *path, uint32_t npath)
{
    return npath == 1 && path[0].str && strcmp(path[0].str, name) == 0;
}

/* "name":{["path":[…],] */
static void open_name(struct fsdpck_text *t, bool first, const char *name, const struct fsdpck_key *path,
                      uint32_t npath)
{
    fsdpck_text_printf(t, "%s\n", first ? "" : ",");
    fsdpck_text_json(t, name);
    fsdpck_text_printf(t, ":{");
    if (is_flat(name, path, npath))
        return;
    fsdpck_text_printf(t, "\"path\":");
    fsdpck_text_json_path(t, path, npath);
    fsdpck_text_printf(t, ",");
}

static void write_rule(const struct fsdpck_manifest *m, const struct manifest_tensor *x, struct fsdpck_text *t)
{
    char text[64];
    fsdpck_text_printf(t, ",\"mesh\":%d,\"placements\":[", x->mesh);
    for (uint32_t d = 0; d < m->meshes[x->mesh].ndim; d++) {
        fsdpck_text_printf(t, "%s", d ? "," : "");
        fsdpck_text_json(t, fsdpck_placement_format(&x->placements[d], text, sizeof text));
    }
    fsdpck_text_printf(t, "]");
}

static void write_chunks(const struct fsdpck_manifest *m, size_t tensor, struct fsdpck_text *t)
{
    size_t first = first_chunk(m, tensor);
    fsdpck_text_printf(t, ",\"chunks\":[");
    for (size_t c = first; c < m->nchunks && m->chunks[c].tensor == tensor; c++) {
        fsdpck_text_printf(t, "%s[%u,", c > first ? "," : "", m->chunks[c].file);
        fsdpck_text_json_u64s(t, m->chunks[c].offset, m->tensors[tensor].ndim);
        fsdpck_text_printf(t, ",");
        fsdpck_text_json_u64s(t, m->chunks[c].size, m->tensors[tensor].ndim);
        fsdpck_text_printf(t, "]");
    }
    fsdpck_text_printf(t, "]");
}

static void write_tensor(const struct fsdpck_manifest *m, size_t i, struct fsdpck_text *t)
{
    const struct manifest_tensor *x = &m->tensors[i];
    uint8_t content[16];
    open_name(t, i == 0, x->name, x->path, x->npath);
    if (x->alias_of >= 0) {
        fsdpck_text_printf(t, "\"alias_of\":");
        fsdpck_text_json(t, m->tensors[x->alias_of].name);
        fsdpck_text_printf(t, "}");
        return;
    }
    fsdpck_text_printf(t, "\"dtype\":\"%s\",\"shape\":", fsdpck_dtype_info(x->dtype)->name);
    fsdpck_text_json_u64s(t, x->shape, x->ndim);
    if (x->mesh >= 0)
        write_rule(m, x, t);
    else
        write_chunks(m, i, t);
    if (x->has_content) {
        fsdpck_content_store(&x->content, content);
        fsdpck_text_printf(t, ",\"content\":");
        fsdpck_text_hex(t, content, 16);
    }
    fsdpck_text_printf(t, "}");
}

static void write_items(const struct fsdpck_manifest *m, struct fsdpck_text *t)
{
    fsdpck_text_printf(t, "},\n\"items\":{");
    for (size_t i = 0; i < m->nitems; i++) {
        const struct manifest_item *x = &m->items[i];
        open_name(t, i == 0, x->name, x->path, x->npath);
        fsdpck_text_printf(t, "\"file\":%u,\"offset\":%" PRIu64 ",\"bytes\":%" PRIu64 "}", x->file, x->offset,
                           x->nbytes);
    }
    fsdpck_text_printf(t, "},\n");
}

static void write_assets(const struct fsdpck_manifest *m, struct fsdpck_text *t)
{
    if (strcmp(m->assets_folder, "assets") != 0) {
        fsdpck_text_printf(t, "\"assets_folder\":");
        fsdpck_text_json(t, m->assets_folder);
        fsdpck_text_printf(t, ",\n");
    }
    fsdpck_text_printf(t, "\"assets\":[");
    for (size_t i = 0; i < m->assets->count; i++) {
        fsdpck_text_printf(t, "%s\n{\"path\":", i ? "," : "");
        fsdpck_text_json(t, m->assets->list[i].path);
        fsdpck_text_printf(t, ",\"bytes\":%" PRIu64 ",\"hash\":", m->assets->list[i].nbytes);
        fsdpck_text_hex(t, m->assets->list[i].hash, 16);
        fsdpck_text_printf(t, "}");
    }
    fsdpck_text_printf(t, "],\n");
}

/* target: final path of the checkpoint; the relative path to the base starts there. */
static int write_base(const struct fsdpck_base *base, const char *target, struct fsdpck_text *t,
                      struct fsdpck_error *err)
{
    char *way = base ? fsdpck_path_relative(target, base->path, err) : NULL;
    if (!way)
        return base ? FSDPCK_ERR_NOMEM : 0;
    fsdpck_text_printf(t, "\"base\":{\"path\":");
    fsdpck_text_json(t, way);
    if (base->held)
        fsdpck_text_printf(t, ",\"held\":\"%s\"", base->held);
    fsdpck_text_printf(t, ",\"tensors\":{");
    for (size_t i = 0; i < base->ntensors; i++) {
        const struct fsdpck_base_tensor *x = &base->tensors[i];
        fsdpck_text_printf(t, "%s\n", i ? "," : "");
        fsdpck_text_json(t, x->name);
        fsdpck_text_printf(t, ":{\"dtype\":\"%s\",\"shape\":", fsdpck_dtype_info(x->dtype)->name);
        fsdpck_text_json_u64s(t, x->shape, x->ndim);
        fsdpck_text_printf(t, ",\"content\":");
        fsdpck_text_hex(t, x->content, 16);
        fsdpck_text_printf(t, "}");
    }
    fsdpck_text_printf(t, "}},\n");
    free(way);
    return 0;
}

static void write_tail(const struct fsdpck_manifest *m, struct fsdpck_text *t)
{
    struct fsdpck_hash128 hash;
    if (m->has_metadata) {
        fsdpck_text_printf(t, "\"metadata\":{\"bytes\":%" PRIu64 ",\"hash\":", m->metadata_nbytes);
        fsdpck_text_hex(t, m->metadata_hash.bytes, 16);
        fsdpck_text_printf(t, "},\n");
    }
    if (t->failed)
        return;
    fsdpck_hash(t->data, t->nbytes, &hash);
    fsdpck_text_printf(t, "\"hash\":");
    fsdpck_text_hex(t, hash.bytes, 16);
    fsdpck_text_printf(t, "}\n");
}

static int write_index(const struct fsdpck_manifest *m, const struct fsdpck_io *io, const struct fsdpck_commit *commit,
                       struct fsdpck_error *err)
{
    struct fsdpck_text t = { 0 };
    write_head(m, &t);
    write_meshes(m, &t);
    write_files(m, &t);
    fsdpck_text_printf(&t, "\"tensors\":{");
    for (size_t i = 0; i < m->ntensors; i++)
        write_tensor(m, i, &t);
    write_items(m, &t);
    write_assets(m, &t);
    if (m->state)
        fsdpck_text_printf(&t, "\"state\":%s,\n", m->state);
    int rc = write_base(m->base, fsdpck_commit_target(commit), &t, err);
    write_tail(m, &t);
    if (!rc)
        rc = fsdpck_text_check(&t, err);
    if (!rc)
        rc = fsdpck_write_file(io, fsdpck_commit_record(commit), t.data, t.nbytes, err);
    fsdpck_text_free(&t);
    return rc;
}

/* ---- the directory ---- */

static int write_assets_folder(struct fsdpck_manifest *m, const struct fsdpck_io *io, struct fsdpck_commit *commit,
                               struct fsdpck_error *err)
{
    if (m->assets->count == 0)
        return 0;
    int rc = fsdpck_commit_created(commit, m->assets_folder, err);
    char *dir = !rc ? fsdpck_path_join(fsdpck_commit_dir(commit), m->assets_folder, err) : NULL;
    if (!rc)
        rc = dir ? fsdpck_assets_write(io, m->assets, dir, err) : FSDPCK_ERR_NOMEM;
    free(dir);
    return rc;
}

/* In place, the old .metadata still exists and is valid. The new one is written beside it, under a name that the commit
 * recognises. */
static int write_metadata_file(struct fsdpck_manifest *m, const struct fsdpck_io *io, struct fsdpck_commit *commit,
                               struct fsdpck_error *err)
{
    char name[64] = ".metadata", uuid[37];
    fsdpck_uuid_format(m->save_id, uuid);
    if (fsdpck_commit_in_place(commit))
        snprintf(name, sizeof name, ".metadata.tmp-%s", uuid);
    int rc = fsdpck_commit_created(commit, name, err);
    char *path = !rc ? fsdpck_path_join(fsdpck_commit_dir(commit), name, err) : NULL;
    if (!rc)
        rc = path ? write_metadata(m, io, path, err) : FSDPCK_ERR_NOMEM;
    free(path);
    return rc;
}

int fsdpck_draw_save_id(const struct fsdpck_io *io, uint8_t uuid[16], struct fsdpck_error *err)
{
    int rc = io->random(io->ctx, uuid, 16);
    fsdpck_uuid_from_random(uuid);
    return rc < 0 ? fsdpck_error_sys(err, -rc, NULL, "no random bytes for a save id") : 0;
}

int fsdpck_manifest_write(struct fsdpck_manifest *m, const struct fsdpck_io *io, struct fsdpck_commit *commit,
                          enum fsdpck_dcp_mode dcp, const struct fsdpck_options *opt, struct fsdpck_error *err)
{
    int rc = write_assets_folder(m, io, commit, err);
    if (!rc && wants_metadata(m, dcp, opt))
        rc = write_metadata_file(m, io, commit, err);
    m->created_ns = io->now_ns(io->ctx);
    return !rc ? write_index(m, io, commit, err) : rc;
}
