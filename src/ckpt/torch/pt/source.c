/* SPDX-License-Identifier: Apache-2.0 */
/* torch.save files as a source: one file, or a folder of them, with or without Hugging Face's index that maps tensors
 * to files. */
#include "torch/pt/file.h"

#include <stdlib.h>
#include <string.h>

#include "base/ioutil.h"
#include "base/suffix.h"
#include "hf/assets.h"
#include "hf/ties.h"
#include "hf/weight_map.h"

static const struct fsdpck_source_ops ops = {
    .kind = "pt",
    .extents = fsdpck_dcp_extents,
    .verify = fsdpck_pt_verify,
    .read_item = fsdpck_pt_read_item,
    .close = fsdpck_pt_close,
};

/* A tensor, as the index lists it. */
struct weight {
    const char *name;
    size_t file;
};

struct folder {
    struct fsdpck_pt_reading r;
    char **names; /* (nnames) entries of the folder, sorted */
    size_t nnames;
    struct fsdpck_arena arena;
    char *index;               /* path of the index; NULL: none */
    struct fsdpck_vec files;   /* const char * */
    struct fsdpck_vec weights; /* struct weight, from the index */
    struct fsdpck_names file_names, weight_names;
};

static const struct weight *weights(const struct folder *f)
{
    return f->weights.data;
}

/* ---- choosing the model's files ---- */

/* Hugging Face's Trainer saves other files beside a model's weights. */
static bool is_other(const char *name)
{
    static const char *const others[] = { "training_args.bin", "optimizer.pt", "optimizer.bin", "scheduler.pt",
                                          "scheduler.bin",     "scaler.pt",    "rng_state" };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (!strncmp(name, others[i], strlen(others[i])))
            return true;
    return false;
}

static bool is_weights(const char *name)
{
    return name[0] != '.' && (ends_with(name, ".bin") || ends_with(name, ".pt") || ends_with(name, ".pth")) &&
           !is_other(name);
}

static int add_file(struct folder *f, const char *name, size_t *id)
{
    size_t old = fsdpck_names_find(&f->file_names, name);
    *id = old;
    if (old != SIZE_MAX)
        return 0;
    char *copy = fsdpck_arena_strndup(&f->arena, name, strlen(name), f->r.err);
    const char **slot = copy ? fsdpck_vec_push(&f->files, f->r.err) : NULL;
    if (!slot)
        return FSDPCK_ERR_NOMEM;
    *slot = copy;
    *id = f->files.count - 1;
    return fsdpck_names_add(&f->file_names, copy, *id, &old, f->r.err);
}

static int add_weight(void *ctx, struct fsdpck_json *j, const char *key, const char *file, struct fsdpck_error *err)
{
    struct folder *f = ctx;
    char *name = fsdpck_arena_strndup(&f->arena, key, strlen(key), err);
    size_t old;
    struct weight *w = name ? fsdpck_vec_push(&f->weights, err) : NULL;
    if (!w || add_file(f, file, &w->file) != 0 ||
        fsdpck_names_add(&f->weight_names, name, f->weights.count - 1, &old, err) != 0)
        return FSDPCK_ERR_NOMEM;
    w->name = name;
    if (old != SIZE_MAX)
        fsdpck_json_fail(j, FSDPCK_ERR_FORMAT, "tensor '%s' is listed twice", name);
    return 0;
}

/* Chooses the files of an index, or one file of the usual name, or all files. */
static int choose(struct folder *f)
{
    static const char *const usual[] = { "pytorch_model.bin", "diffusion_pytorch_model.bin", "adapter_model.bin" };
    size_t id;
    for (size_t i = 0; i < f->nnames && !f->index; i++)
        if (f->names[i][0] != '.' && ends_with(f->names[i], ".bin.index.json") &&
            !(f->index = fsdpck_path_join(f->r.src->path, f->names[i], f->r.err)))
            return FSDPCK_ERR_NOMEM;
    if (f->index)
        return fsdpck_weight_map_read(f->r.src->io, f->index, add_weight, f, f->r.err);
    for (size_t i = 0; i < f->nnames; i++)
        for (size_t k = 0; k < sizeof usual / sizeof *usual; k++)
            if (!strcmp(f->names[i], usual[k]))
                return add_file(f, usual[k], &id);
    int rc = 0;
    for (size_t i = 0; i < f->nnames && !rc; i++)
        if (is_weights(f->names[i]))
            rc = add_file(f, f->names[i], &id);
    return rc || f->files.count
               ? rc
               : fsdpck_error_set(f->r.err, FSDPCK_ERR_MISSING, f->r.src->path, "has no *.bin, *.pt or *.pth file");
}

/* ---- the files ---- */

static int fail_index(struct folder *f, int code, const char *tensor, const char *before, const char *file,
                      const char *after)
{
    fsdpck_error_set(f->r.err, code, f->index, "%s'%s'%s", before, file, after);
    fsdpck_error_tensor(f->r.err, tensor);
    return f->r.err->code;
}

/* Checks that the index lists every tensor of the file, and in this file. */
static int check_listed(struct folder *f, size_t file, size_t first)
{
    const char *name = ((const char **)f->files.data)[file];
    for (size_t i = first; i < f->r.catalogue.entries.count; i++) {
        const char *tensor = fsdpck_catalogue_name(&f->r.catalogue, i);
        size_t w = fsdpck_names_find(&f->weight_names, tensor);
        if (w == SIZE_MAX)
            return fail_index(f, FSDPCK_ERR_FORMAT, tensor, "does not list it, but ", name, " has it");
        if (weights(f)[w].file != file)
            return fail_index(f, FSDPCK_ERR_FORMAT, tensor, "says that it lies elsewhere, but it is in ", name, "");
    }
    return 0;
}

static int check_found(struct folder *f)
{
    for (size_t i = 0; i < f->weights.count; i++)
        if (fsdpck_names_find(&f->r.catalogue.names, weights(f)[i].name) == SIZE_MAX)
            return fail_index(f, FSDPCK_ERR_MISSING, weights(f)[i].name, "says that it lies in ",
                              ((const char **)f->files.data)[weights(f)[i].file], ", which does not have it");
    return 0;
}

static int read_file(struct folder *f, size_t i)
{
    const char *name = ((const char **)f->files.data)[i];
    size_t first = f->r.catalogue.entries.count;
    char *path = fsdpck_path_join(f->r.src->path, name, f->r.err);
    if (!path)
        return FSDPCK_ERR_NOMEM;
    bool there = !f->index || fsdpck_is_file(f->r.src->io, path);
    int rc = there ? fsdpck_pt_read(&f->r, path, name, NULL)
                   : fsdpck_error_set(f->r.err, FSDPCK_ERR_MISSING, f->index, "names the file '%s', which is not there",
                                      name);
    free(path);
    return rc || !f->index ? rc : check_listed(f, i, first);
}

static int open_folder(struct folder *f)
{
    struct fsdpck_source *src = f->r.src;
    int rc = fsdpck_list_sorted(src->io, src->path, &f->names, &f->nnames, f->r.err);
    if (!rc)
        rc = choose(f);
    for (size_t i = 0; !rc && i < f->files.count; i++)
        rc = read_file(f, i);
    if (!rc && f->index)
        rc = check_found(f);
    if (!rc)
        rc = fsdpck_pt_finish(&f->r);
    if (!rc)
        rc = fsdpck_ties_add(src, src->path, f->r.err);
    return rc ? rc : fsdpck_assets_scan(src, src->path, f->r.err);
}

static int open_file(struct fsdpck_pt_reading *r)
{
    const char *slash = strrchr(r->src->path, '/');
    int rc = fsdpck_pt_read(r, r->src->path, slash ? slash + 1 : r->src->path, NULL);
    return rc ? rc : fsdpck_pt_finish(r);
}

int fsdpck_open_pt(struct fsdpck_source *src, struct fsdpck_error *err)
{
    struct folder f = { .files = FSDPCK_VEC(const char *), .weights = FSDPCK_VEC(struct weight) };
    src->ops = &ops;
    int rc = fsdpck_pt_begin(&f.r, src, err);
    if (!rc)
        rc = fsdpck_is_directory(src->io, src->path) ? open_folder(&f) : open_file(&f.r);
    fsdpck_pt_end(&f.r);
    fsdpck_list_free(f.names, f.nnames);
    free(f.index);
    fsdpck_vec_free(&f.files);
    fsdpck_vec_free(&f.weights);
    fsdpck_names_free(&f.file_names);
    fsdpck_names_free(&f.weight_names);
    fsdpck_arena_free(&f.arena);
    return rc;
}
