/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the files, sees by their keys what they are, and has each translated. Keys that need facts of other files, as
 * the number of ranks, come last. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "import/import.h"
#include "import/read.h"
#include "text/file.h"

static bool has(const json_t *root, const char *key)
{
    return json_object_get(root, key) != NULL;
}

/* True if one of the NULL-ended keys is there. */
static bool has_one(const json_t *root, const char *const *keys)
{
    for (; *keys; keys++)
        if (has(root, *keys))
            return true;
    return false;
}

/* The dialect whose keys the file has; NULL: none. */
static const struct import_dialect *recognise(const json_t *root)
{
    static const char *const accelerate[] = { "compute_environment", "distributed_type", NULL };
    static const char *const axolotl[] = { "base_model", "sequence_len", "num_epochs", "micro_batch_size", NULL };
    static const char *const trl[] = { "model_name_or_path", "dataset_name",        "use_peft", "packing", "max_length",
                                       "max_seq_length",     "assistant_only_loss", NULL };
    static const char *const transformers[] = { "output_dir",
                                                "learning_rate",
                                                "per_device_train_batch_size",
                                                "num_train_epochs",
                                                "max_steps",
                                                "gradient_accumulation_steps",
                                                "bf16",
                                                "warmup_steps",
                                                "lr_scheduler_type",
                                                "optim",
                                                "fsdp",
                                                "save_steps",
                                                NULL };
    static const char *const tables[] = {
        "job", "optimizer", "training", "parallelism", "activation_checkpoint", NULL
    };
    if (has_one(root, accelerate))
        return &import_accelerate;
    for (const char *const *name = tables; *name; name++)
        if (json_is_object(json_object_get(root, *name)))
            return &import_torchtitan;
    return has_one(root, axolotl)        ? &import_axolotl
           : has_one(root, trl)          ? &import_trl
           : has_one(root, transformers) ? &import_transformers
                                         : NULL;
}

static int refuse_kind(const struct import_file *f, struct fsdpck_error *err)
{
    if (json_is_object(json_object_get(f->root, "data")) && has(f->root, "model"))
        return fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, f->path,
                                "this is a config of fsdptrain: `fsdptrain run` takes it as it is");
    return fsdpck_error_set(
        err, FSDPCK_ERR_UNSUPPORTED, f->path,
        "neither a configuration of accelerate, a Trainer, TRL, axolotl nor torchtitan: it has none "
        "of their keys, as distributed_type, learning_rate, base_model or [training]");
}

static json_t *new_report(const char *path, const char *kind)
{
    return json_pack("{s:s, s:s, s:[], s:[], s:[], s:[]}", "file", path, "kind", kind, "taken", "defaults", "unneeded",
                     "notes");
}

static int open_file(const char *path, struct import_file *f, struct fsdpck_error *err)
{
    enum import_syntax syntax;
    size_t nbytes;
    char *text;
    *f = (struct import_file){ .path = path };
    int rc = text_file_read(path, IMPORT_FILE_NBYTES, &text, &nbytes, err);
    if (rc)
        return rc;
    rc = import_parse(path, text, nbytes, &f->root, &syntax, err);
    free(text);
    f->dialect = rc ? NULL : recognise(f->root);
    if (!rc && !f->dialect)
        rc = refuse_kind(f, err);
    f->report = rc ? NULL : new_report(path, f->dialect->kind);
    return rc || f->report ? rc : fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "a path that is not UTF-8");
}

/* accelerate sets the type that gradients are reduced in from mixed_precision, whichever file names that. */
static void settle_reduction(struct importer *im)
{
    const json_t *dtype = json_object_get(im->config, "dtype");
    const char *param = json_string_value(json_object_get(dtype, "param"));
    if (im->sharded && param && strcmp(param, "bf16") == 0)
        import_put_weak(im, "mixed_precision", "dtype.reduce", json_string("bf16"));
}

static int translate(struct importer *im, struct import_file *files, size_t nfiles)
{
    for (size_t i = 0; i < nfiles && !im->rc; i++) {
        im->file = &files[i];
        import_walk(im);
    }
    for (size_t i = 0; i < nfiles && !im->rc; i++) {
        im->file = &files[i];
        import_defaults(im);
        if (files[i].dialect->finish)
            files[i].dialect->finish(im);
    }
    settle_reduction(im);
    return im->rc;
}

int train_import_read(const char *const *paths, size_t npaths, uint32_t nranks, struct train_import *out,
                      struct fsdpck_error *err)
{
    struct import_file *files = calloc(npaths + 1, sizeof *files);
    struct importer im = { .config = json_object(), .origins = json_object(), .nranks = nranks, .err = err };
    json_t *reports = json_array();
    int rc = files && im.config && im.origins && reports ? 0 : fsdpck_error_nomem(err, 256);
    *out = (struct train_import){ 0 };
    for (size_t i = 0; i < npaths && !rc; i++)
        rc = open_file(paths[i], &files[i], err);
    if (!rc)
        rc = translate(&im, files, npaths);
    for (size_t i = 0; files && i < npaths; i++) {
        if (!rc)
            json_array_append(reports, files[i].report);
        json_decref(files[i].report);
        json_decref(files[i].root);
    }
    free(files);
    json_decref(im.origins);
    if (rc) {
        json_decref(im.config);
        json_decref(reports);
        return rc;
    }
    *out = (struct train_import){ .config = im.config, .files = reports, .nranks = im.nranks_named ? im.nranks : 0 };
    return 0;
}

void train_import_free(struct train_import *im)
{
    json_decref(im->config);
    json_decref(im->files);
    *im = (struct train_import){ 0 };
}
