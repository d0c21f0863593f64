/* SPDX-License-Identifier: Apache-2.0 */
/* Assets: the files of a model folder besides weights. They are copied from a Hugging Face folder into a checkpoint's
 * assets/, and back. */
#ifndef CKPT_ASSETS_H
#define CKPT_ASSETS_H

#include "engine/source_impl.h"

/* Adds every asset of `folder` to src, sorted by path: regular files (links followed) that are not weights
 * (.safetensors .bin .pt .pth .ckpt .h5 .msgpack .onnx .gguf .ot .distcp, and *.index.json of weights). Sub-folders are
 * included, except those that contain weights themselves (another model, or a checkpoint). Hidden names are skipped. */
int fsdpck_assets_scan(struct fsdpck_source *src, const char *folder, struct fsdpck_error *err);

/* One asset to write: bytes copied from a file, or kept in memory if they had to change. */
struct fsdpck_asset_out {
    char *path; /* relative */
    char *from; /* full path, or NULL: bytes in data */
    char *data;
    uint64_t nbytes;
    bool check_hash;  /* the bytes must match `hash` (from a checkpoint that states it) */
    uint8_t hash[16]; /* XXH3-128 of the written bytes, filled by fsdpck_assets_write */
};
struct fsdpck_assets_out {
    struct fsdpck_asset_out *list;
    size_t count;
};

/* Collects the assets to write at `target`: those of src, or of `folder` if not NULL, without the entry of that folder
 * that contains the target. Follows a symbolic link within the folder, and within the model's own folder of a Hugging
 * Face cache; refuses other links. cast: config.json's torch_dtype / dtype become that of `dtype`. */
int fsdpck_assets_gather(const struct fsdpck_source *src, const char *folder, const char *target, bool cast,
                         enum fsdpck_dtype dtype, struct fsdpck_assets_out *out, struct fsdpck_error *err);
/* Changes torch_dtype / dtype of config.json among them, as gathering with `cast` does. */
int fsdpck_assets_set_dtype(const struct fsdpck_io *io, struct fsdpck_assets_out *assets, enum fsdpck_dtype dtype,
                            struct fsdpck_error *err);
/* Writes them below `dir` (creates it and sub-folders if missing), and fsyncs each file and folder; fills hash and
 * nbytes. */
int fsdpck_assets_write(const struct fsdpck_io *io, struct fsdpck_assets_out *assets, const char *dir,
                        struct fsdpck_error *err);
void fsdpck_assets_free(struct fsdpck_assets_out *assets);
/* *tied: config.json among them has tie_word_embeddings: true; false if missing or different. */
int fsdpck_assets_tied(const struct fsdpck_io *io, const struct fsdpck_assets_out *assets, bool *tied,
                       struct fsdpck_error *err);
/* Gets the dtype that config.json among them states for the model; *found false if it is missing or unknown. */
int fsdpck_assets_dtype(const struct fsdpck_io *io, const struct fsdpck_assets_out *assets, bool *found,
                        enum fsdpck_dtype *dtype, struct fsdpck_error *err);

#endif
