/* SPDX-License-Identifier: Apache-2.0 */
/* A PyTorch DCP save in safetensors form: each rank has shard-RRRRR-model-….safetensors with its slices and their
 * offsets. No file states the shape of a tensor or the number of ranks, so the slices must fill the box that they
 * span. */
#include "torch/dcp/shards.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/ioutil.h"
#include "base/json_read.h"
#include "base/suffix.h"
#include "hf/assets.h"
#include "hf/safetensors_header.h"
#include "torch/catalogue.h"

/* A slice, as its file lists it. */
struct slice {
    const char *name;
    enum fsdpck_dtype dtype;
    uint32_t file, ndim;
    uint64_t payload;
    uint64_t *box; /* (2, ndim): offsets, sizes */
    bool placed;   /* DCP_SHARDING_INFO lists it */
};

struct shards {
    struct fsdpck_source *src;
    struct dcp *dcp;
    char **names; /* (nnames) entries of the folder, sorted */
    size_t nnames;
    struct fsdpck_vec slices;   /* struct slice */
    struct fsdpck_names listed; /* of the file being read: name -> slice */
    struct fsdpck_names whole;  /* name -> its first slice */
    uint32_t file;
    struct fsdpck_error *err;
};

static struct slice *slices(const struct shards *s)
{
    return s->slices.data;
}

/* R of "shard-R-….safetensors", from 1; 0 for other names. */
static uint64_t rank_of(const char *name)
{
    uint64_t rank = 0;
    if (strncmp(name, "shard-", 6) != 0 || !ends_with(name, ".safetensors"))
        return 0;
    for (name += 6; *name >= '0' && *name <= '9' && rank <= FSDPCK_MAX_RANKS; name++)
        rank = rank * 10 + (uint64_t)(*name - '0');
    return *name == '-' && rank <= FSDPCK_MAX_RANKS ? rank : 0;
}

bool fsdpck_dcp_shards_is(const char *name)
{
    return rank_of(name) > 0;
}

/* ---- one file ---- */

static int add_entry(void *ctx, const struct safetensors_entry *e, struct fsdpck_error *err)
{
    struct shards *s = ctx;
    size_t old;
    struct slice *slice = fsdpck_vec_push(&s->slices, err);
    if (!slice)
        return FSDPCK_ERR_NOMEM;
    *slice = (struct slice){ .name = fsdpck_arena_strndup(&s->src->arena, e->name, strlen(e->name), err),
                             .dtype = e->dtype,
                             .file = s->file,
                             .ndim = e->ndim,
                             .payload = e->payload,
                             .box = fsdpck_arena_array(&s->src->arena, 2 * e->ndim, sizeof *slice->box, err) };
    if (!slice->name || !slice->box || fsdpck_names_add(&s->listed, slice->name, s->slices.count - 1, &old, err))
        return FSDPCK_ERR_NOMEM;
    if (old != SIZE_MAX)
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, source_files(s->src)[s->file].path,
                                "tensor '%s' is listed twice", e->name);
    if (e->ndim)
        memcpy(slice->box + e->ndim, e->shape, e->ndim * sizeof *e->shape);
    return 0;
}

/* {"saved_offsets": [5, 0]} */
static void parse_offsets(struct fsdpck_json *j, struct slice *slice)
{
    const char *key;
    fsdpck_json_object(j);
    while (fsdpck_json_next_key(j, &key)) {
        uint32_t n = 0;
        if (!slice || strcmp(key, "saved_offsets") != 0) {
            fsdpck_json_skip(j);
            continue;
        }
        fsdpck_json_array(j);
        for (; fsdpck_json_next_item(j); n++) {
            uint64_t offset = fsdpck_json_u64(j);
            if (n < slice->ndim)
                slice->box[n] = offset;
        }
        if (n != slice->ndim)
            fsdpck_json_fail(j, FSDPCK_ERR_FORMAT, "tensor '%s' has %u saved_offsets and %u dimensions", slice->name, n,
                             slice->ndim);
        slice->placed = true;
    }
}

/* {"model.w": {"saved_offsets": …}, …} */
static int parse_info(struct shards *s, const char *text)
{
    struct fsdpck_json j;
    const char *key;
    fsdpck_json_begin(&j, source_files(s->src)[s->file].path, 0, text, strlen(text), s->err);
    fsdpck_json_object(&j);
    while (fsdpck_json_next_key(&j, &key)) {
        size_t i = fsdpck_names_find(&s->listed, key);
        parse_offsets(&j, i == SIZE_MAX ? NULL : &slices(s)[i]);
    }
    fsdpck_json_end(&j);
    int rc = j.failed ? s->err->code : 0;
    fsdpck_json_free(&j);
    return rc;
}

static int read_file(struct shards *s, const char *name)
{
    char *path = fsdpck_path_join(s->src->path, name, s->err), *info = NULL;
    size_t first = s->slices.count;
    int rc = path ? fsdpck_source_add_file(s->src, path, name, (int64_t)rank_of(name) - 1, &s->file, s->err)
                  : FSDPCK_ERR_NOMEM;
    if (!rc)
        rc = fsdpck_safetensors_slices(s->src->io, path, add_entry, s, &info, s->err);
    if (!rc && info)
        rc = parse_info(s, info);
    for (size_t i = first; !rc && i < s->slices.count; i++)
        if (!slices(s)[i].placed) {
            rc = fsdpck_error_set(s->err, FSDPCK_ERR_MISSING, path,
                                  "its DCP_SHARDING_INFO does not say where the slice begins");
            fsdpck_error_tensor(s->err, slices(s)[i].name);
        }
    fsdpck_names_free(&s->listed);
    free(info);
    free(path);
    return rc;
}

/* A rank has one file for each "model-…" part. Every rank up to the last must have at least one. */
static int read_files(struct shards *s)
{
    uint64_t last = 0;
    int rc = 0;
    for (size_t i = 0; !rc && i < s->nnames; i++) {
        uint64_t rank = rank_of(s->names[i]);
        if (!rank)
            continue;
        if (rank > last + 1)
            return fsdpck_error_set(s->err, FSDPCK_ERR_MISSING, s->src->path,
                                    "rank %" PRIu64 " is missing: no 'shard-%05" PRIu64 "-….safetensors' before '%s'",
                                    last, last + 1, s->names[i]);
        last = rank;
        rc = read_file(s, s->names[i]);
    }
    s->src->nranks = last;
    return rc;
}

/* ---- all files ---- */

/* Computes the shape that the slices of each name span, into `shapes` at the first slice of the name. */
static int span(struct shards *s, uint64_t **shapes)
{
    for (size_t i = 0; i < s->slices.count; i++) {
        const struct slice *x = &slices(s)[i];
        size_t old;
        if (fsdpck_names_add(&s->whole, x->name, i, &old, s->err) ||
            !(shapes[i] = fsdpck_arena_array(&s->src->arena, x->ndim, sizeof **shapes, s->err)))
            return FSDPCK_ERR_NOMEM;
        uint64_t *shape = shapes[old == SIZE_MAX ? i : old], end;
        bool same = old == SIZE_MAX || slices(s)[old].ndim == x->ndim;
        for (uint32_t d = 0; same && d < x->ndim; d++) {
            if (!checked_add(x->box[d], x->box[x->ndim + d], &end))
                same = false;
            else
                shape[d] = end > shape[d] ? end : shape[d];
        }
        if (same)
            continue;
        fsdpck_error_set(s->err, FSDPCK_ERR_FORMAT, source_files(s->src)[x->file].path,
                         "its slice does not fit the slices in the files before");
        fsdpck_error_tensor(s->err, x->name);
        return FSDPCK_ERR_FORMAT;
    }
    return 0;
}

static int collect(struct shards *s, struct fsdpck_catalogue *c, uint64_t *const *shapes)
{
    int rc = 0;
    for (size_t i = 0; !rc && i < s->slices.count; i++) {
        const struct slice *x = &slices(s)[i];
        const struct source_file *file = &source_files(s->src)[x->file];
        struct fsdpck_stored_box piece = { .file = x->file, .box = x->box, .found = true, .payload = x->payload };
        rc = fsdpck_catalogue_tensor(c, file->path, x->file, x->name, NULL, 0, x->dtype, x->ndim,
                                     shapes[fsdpck_names_find(&s->whole, x->name)], &piece.tensor);
        if (!rc)
            rc = fsdpck_catalogue_add_box(c, &piece);
    }
    return rc ? rc : fsdpck_catalogue_finish(c, s->src->path);
}

static int join(struct shards *s)
{
    struct fsdpck_catalogue c;
    uint64_t **shapes = calloc(s->slices.count + 1, sizeof *shapes);
    if (!shapes)
        return fsdpck_error_nomem(s->err, s->slices.count * sizeof *shapes);
    fsdpck_catalogue_begin(&c, s->src, s->dcp, s->err);
    int rc = span(s, shapes);
    if (!rc)
        rc = collect(s, &c, shapes);
    fsdpck_catalogue_free(&c);
    free(shapes);
    return rc;
}

static void note_nranks(const struct shards *s)
{
    char line[160];
    if (!s->src->opt.note)
        return;
    snprintf(line, sizeof line,
             "DCP in safetensors form does not say how many ranks there were: files of %" PRIu64
             " are here, and they fit together",
             s->src->nranks);
    s->src->opt.note(s->src->opt.ctx, line);
}

int fsdpck_dcp_read_shards(struct fsdpck_source *src, struct dcp *dcp, struct fsdpck_error *err)
{
    struct shards s = { .src = src, .dcp = dcp, .slices = FSDPCK_VEC(struct slice), .err = err };
    int rc = fsdpck_list_sorted(src->io, src->path, &s.names, &s.nnames, err);
    if (!rc)
        rc = read_files(&s);
    if (!rc)
        rc = join(&s);
    if (!rc)
        note_nranks(&s);
    if (!rc)
        rc = fsdpck_assets_scan(src, src->path, err);
    fsdpck_list_free(s.names, s.nnames);
    fsdpck_vec_free(&s.slices);
    fsdpck_names_free(&s.whole);
    return rc;
}
