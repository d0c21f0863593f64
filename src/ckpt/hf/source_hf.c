/* SPDX-License-Identifier: Apache-2.0 */
/* A Hugging Face folder as a source: one or several safetensors files, the index that maps tensors to files, and the
 * other files. The files' headers decide, not the index: a folder whose index contradicts them is refused. */
#include "hf/safetensors_header.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hf/assets.h"
#include "hf/ties.h"
#include "hf/weight_map.h"
#include "base/ioutil.h"
#include "base/suffix.h"
#include "commit/commit_view.h"

static const char index_suffix[] = ".safetensors.index.json", weights_suffix[] = ".safetensors";

static const struct fsdpck_source_ops ops = {
    .kind = "hf",
    .extents = fsdpck_safetensors_extents,
    .close = fsdpck_safetensors_close,
};

struct weight_file {
    const char *name;
    uint32_t id; /* the value of struct weight.file */
};

/* A tensor, as the index lists it. */
struct weight {
    const char *name;
    uint32_t file;
    bool found;
};

struct folder {
    struct fsdpck_source *src;
    char **names; /* (nnames) entries of the folder, sorted */
    size_t nnames;
    struct fsdpck_arena arena;
    char *index;               /* path of the index, or NULL */
    struct fsdpck_vec files;   /* struct weight_file */
    struct fsdpck_vec weights; /* struct weight: from the index */
    struct fsdpck_names file_names, weight_names;
    const struct weight_file *reading;
    uint32_t ordinal; /* ordinal in src->files of the current file */
    bool conflict;
};

static void note_weights(const struct folder *f, const char *before, const char *name, const char *after)
{
    char line[1024];
    if (!f->src->opt.note)
        return;
    snprintf(line, sizeof line, "%s%s%s", before, name, after);
    f->src->opt.note(f->src->opt.ctx, line);
}

/* ---- choosing the model's files ---- */

/* Hidden files do not belong to the model: macOS leaves ._model.safetensors behind. */
static size_t count_suffix(const struct folder *f, const char *suffix, const char **first)
{
    size_t n = 0;
    for (size_t i = 0; i < f->nnames; i++)
        if (f->names[i][0] != '.' && ends_with(f->names[i], suffix) && n++ == 0)
            *first = f->names[i];
    return n;
}

static bool has_name(const struct folder *f, const char *name)
{
    for (size_t i = 0; i < f->nnames; i++)
        if (strcmp(f->names[i], name) == 0)
            return true;
    return false;
}

/* Gets the ordinal of the name among the files; adds it if new. */
static int add_file(struct folder *f, const char *name, uint32_t *id, struct fsdpck_error *err)
{
    size_t old = fsdpck_names_find(&f->file_names, name);
    if (old == SIZE_MAX) {
        char *copy = fsdpck_arena_strndup(&f->arena, name, strlen(name), err);
        struct weight_file *w = copy ? fsdpck_vec_push(&f->files, err) : NULL;
        if (!w || fsdpck_names_add(&f->file_names, copy, f->files.count - 1, &old, err) != 0)
            return FSDPCK_ERR_NOMEM;
        *w = (struct weight_file){ copy, (uint32_t)(f->files.count - 1) };
        old = w->id;
    }
    *id = (uint32_t)old;
    return 0;
}

static int add_all_files(struct folder *f, struct fsdpck_error *err)
{
    uint32_t id;
    int rc = 0;
    for (size_t i = 0; i < f->nnames && !rc; i++)
        if (f->names[i][0] != '.' && ends_with(f->names[i], weights_suffix))
            rc = add_file(f, f->names[i], &id, err);
    return rc;
}

/* Sets *index to the name of the index, or adds the files if there is none. */
static int choose(struct folder *f, const char **index, struct fsdpck_error *err)
{
    const char *first_index = NULL, *first = NULL;
    uint32_t id;
    size_t nindexes = count_suffix(f, index_suffix, &first_index);
    *index = NULL;
    if (has_name(f, "model.safetensors.index.json"))
        *index = "model.safetensors.index.json";
    else if (nindexes == 1)
        *index = first_index;
    else if (has_name(f, "model.safetensors"))
        return add_file(f, "model.safetensors", &id, err);
    else if (nindexes > 1)
        return fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, f->src->path,
                                "has %zu indexes (*.safetensors.index.json), none of them model.safetensors.index.json",
                                nindexes);
    else if (count_suffix(f, weights_suffix, &first) == 0)
        return fsdpck_error_set(err, FSDPCK_ERR_MISSING, f->src->path, "has no *.safetensors file");
    else
        return add_all_files(f, err);
    return 0;
}

/* ---- the index ---- */

static int add_weight(void *ctx, struct fsdpck_json *j, const char *key, const char *file, struct fsdpck_error *err)
{
    struct folder *f = ctx;
    char *name = fsdpck_arena_strndup(&f->arena, key, strlen(key), err);
    size_t old;
    uint32_t id;
    if (!name || add_file(f, file, &id, err) != 0 ||
        fsdpck_names_add(&f->weight_names, name, f->weights.count, &old, err) != 0)
        return FSDPCK_ERR_NOMEM;
    if (old != SIZE_MAX) {
        fsdpck_json_fail(j, FSDPCK_ERR_FORMAT, "tensor '%s' is listed twice", name);
        return 0;
    }
    struct weight *w = fsdpck_vec_push(&f->weights, err);
    if (!w)
        return FSDPCK_ERR_NOMEM;
    *w = (struct weight){ name, id, false };
    return 0;
}

static int read_index(struct folder *f, const char *name, struct fsdpck_error *err)
{
    if (!(f->index = fsdpck_path_join(f->src->path, name, err)))
        return FSDPCK_ERR_NOMEM;
    return fsdpck_weight_map_read(f->src->io, f->index, add_weight, f, err);
}

static const char *file_of(const struct folder *f, const struct weight *w)
{
    const struct weight_file *files = f->files.data;
    for (size_t i = 0; i < f->files.count; i++)
        if (files[i].id == w->file)
            return files[i].name;
    return "";
}

/* ---- the files ---- */

static int check_listed(struct folder *f, const char *name, struct fsdpck_error *err)
{
    size_t i = fsdpck_names_find(&f->weight_names, name);
    if (i == SIZE_MAX)
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, f->index, "does not list tensor '%s', which lies in '%s'", name,
                                f->reading->name);
    struct weight *w = (struct weight *)f->weights.data + i;
    if (w->file != f->reading->id)
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, f->index,
                                "says that tensor '%s' lies in '%s', but it is in '%s'", name, file_of(f, w),
                                f->reading->name);
    w->found = true;
    return 0;
}

static int add_entry(void *ctx, const struct safetensors_entry *e, struct fsdpck_error *err)
{
    struct folder *f = ctx;
    int rc = f->index ? check_listed(f, e->name, err) : 0;
    return rc ? rc : fsdpck_safetensors_add(f->src, f->ordinal, e, err);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct weight_file *)a)->name, ((const struct weight_file *)b)->name);
}

/* Runs before any header is read, so that an incomplete download is reported as such, whatever else is wrong. */
static int check_files(const struct folder *f, struct fsdpck_error *err)
{
    const struct weight_file *files = f->files.data;
    for (size_t i = 0; i < f->files.count && f->index; i++) {
        char *path = fsdpck_path_join(f->src->path, files[i].name, err);
        bool there = path && fsdpck_is_file(f->src->io, path);
        free(path);
        if (!path)
            return FSDPCK_ERR_NOMEM;
        if (!there)
            return fsdpck_error_set(err, FSDPCK_ERR_MISSING, f->index, "names the file '%s', which is not there",
                                    files[i].name);
    }
    return 0;
}

static int read_file(struct folder *f, const struct weight_file *file, struct fsdpck_error *err)
{
    char *path = fsdpck_path_join(f->src->path, file->name, err);
    if (!path)
        return FSDPCK_ERR_NOMEM;
    f->reading = file;
    int rc = fsdpck_source_add_file(f->src, path, file->name, -1, &f->ordinal, err);
    if (!rc)
        rc = fsdpck_safetensors_header(f->src->io, path, add_entry, f, err);
    free(path);
    return rc;
}

static int read_files(struct folder *f, struct fsdpck_error *err)
{
    const struct weight_file *files = f->files.data;
    const struct weight *w = f->weights.data;
    if (f->files.count)
        qsort(f->files.data, f->files.count, sizeof *files, by_name);
    int rc = check_files(f, err);
    for (size_t i = 0; i < f->files.count && !rc; i++)
        rc = read_file(f, &files[i], err);
    for (size_t i = 0; i < f->weights.count && !rc; i++)
        if (!w[i].found)
            rc = fsdpck_error_set(err, FSDPCK_ERR_MISSING, f->index,
                                  "says that tensor '%s' lies in '%s', which does not have it", w[i].name,
                                  file_of(f, &w[i]));
    return rc;
}

/* ---- files that the index does not name ---- */

static int check_extra(void *ctx, const struct safetensors_entry *e, struct fsdpck_error *err)
{
    struct folder *f = ctx;
    size_t i = fsdpck_names_find(&f->weight_names, e->name);
    if (i == SIZE_MAX)
        return 0;
    f->conflict = true;
    fsdpck_error_set(err, FSDPCK_ERR_FORMAT, f->index,
                     "says that tensor '%s' lies in '%s', but '%s', which it does not name, has one too", e->name,
                     file_of(f, (struct weight *)f->weights.data + i), f->reading->name);
    fsdpck_error_hint(err, "move '%s' away if it is left over from another save", f->reading->name);
    return FSDPCK_ERR_FORMAT;
}

/* Hugging Face ignores these files. So do we, unless they conflict with a file of the index. */
static int check_extras(struct folder *f, struct fsdpck_error *err)
{
    for (size_t i = 0; i < f->nnames; i++) {
        struct weight_file extra = { f->names[i], 0 };
        struct fsdpck_error found = { 0 };
        if (extra.name[0] == '.' || !ends_with(extra.name, weights_suffix) ||
            fsdpck_names_find(&f->file_names, extra.name) != SIZE_MAX)
            continue;
        char *path = fsdpck_path_join(f->src->path, extra.name, err);
        if (!path)
            return FSDPCK_ERR_NOMEM;
        f->reading = &extra;
        if (fsdpck_is_file(f->src->io, path))
            fsdpck_safetensors_header(f->src->io, path, check_extra, f, &found);
        free(path);
        if (f->conflict) {
            *err = found;
            return found.code;
        }
        note_weights(f, "ignored ", extra.name, ": the index does not name it");
    }
    return 0;
}

static int list_names(struct folder *f, struct fsdpck_error *err)
{
    struct fsdpck_commit_view view = { 0 };
    int rc = fsdpck_list_sorted(f->src->io, f->src->path, &f->names, &f->nnames, err);
    if (!rc)
        rc = fsdpck_commit_view(f->src->io, f->src->path, f->names, f->nnames, &view, err);
    if (!rc)
        fsdpck_commit_view_filter(&view, f->names, &f->nnames);
    fsdpck_commit_view_free(&view);
    return rc;
}

static int open_folder(struct folder *f, struct fsdpck_error *err)
{
    const char *index = NULL;
    int rc = list_names(f, err);
    if (!rc)
        rc = choose(f, &index, err);
    if (!rc && index)
        rc = read_index(f, index, err);
    if (!rc)
        rc = read_files(f, err);
    if (!rc && index)
        rc = check_extras(f, err);
    if (!rc)
        rc = fsdpck_ties_add(f->src, f->src->path, err);
    return rc ? rc : fsdpck_assets_scan(f->src, f->src->path, err);
}

int fsdpck_open_hf(struct fsdpck_source *src, struct fsdpck_error *err)
{
    struct fsdpck_error own = { 0 };
    struct folder f = { .src = src, .files = FSDPCK_VEC(struct weight_file), .weights = FSDPCK_VEC(struct weight) };
    if (!err)
        err = &own;
    int rc = fsdpck_safetensors_begin(src, &ops, err);
    if (!rc)
        rc = open_folder(&f, err);
    fsdpck_list_free(f.names, f.nnames);
    free(f.index);
    fsdpck_vec_free(&f.files);
    fsdpck_vec_free(&f.weights);
    fsdpck_names_free(&f.file_names);
    fsdpck_names_free(&f.weight_names);
    fsdpck_arena_free(&f.arena);
    return rc;
}
