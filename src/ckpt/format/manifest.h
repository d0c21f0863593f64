/* SPDX-License-Identifier: Apache-2.0 */
/* The contents of index.json and .metadata, collected by the code that writes the shard files: both files are written
 * from this struct. */
#ifndef CKPT_MANIFEST_H
#define CKPT_MANIFEST_H

#include <fsdpck/base.h>
#include <fsdpck/convert.h>

#include "hf/assets.h"
#include "commit/commit.h"
#include "base/hash.h"

struct manifest_file { /* the position is the rank */
    const char *name;
    uint64_t nbytes, table, table_nbytes;
    struct fsdpck_hash128 table_hash;
};

struct manifest_tensor {
    const char *name;
    const struct fsdpck_key *path;
    uint32_t npath;
    int64_t alias_of; /* position, or -1 */
    enum fsdpck_dtype dtype;
    uint32_t ndim;
    const uint64_t *shape;
    int32_t mesh;                              /* position in meshes, or -1: listed chunks */
    const struct fsdpck_placement *placements; /* (ndim of the mesh) */
    bool has_content;
    struct fsdpck_content content;
};

struct manifest_chunk { /* a stored chunk, of a tensor that is not an alias */
    uint32_t tensor, file;
    const uint64_t *offset, *size;
    uint64_t item, item_nbytes;
};

struct manifest_item {
    const char *name;
    const struct fsdpck_key *path;
    uint32_t npath;
    uint32_t file;
    uint64_t offset, nbytes;
};

struct fsdpck_manifest {
    uint8_t save_id[16];
    int64_t created_ns;
    const struct fsdpck_mesh *meshes;
    size_t nmeshes;
    const struct manifest_file *files;
    size_t nfiles;
    const struct manifest_tensor *tensors;
    size_t ntensors;
    const struct manifest_chunk *chunks; /* sorted by tensor, then offsets */
    size_t nchunks;
    const struct manifest_item *items;
    size_t nitems;
    struct fsdpck_assets_out *assets;
    const char *assets_folder;      /* name of their folder: "assets" */
    const char *state;              /* JSON object, or NULL */
    const struct fsdpck_base *base; /* its path: absolute, without links; NULL: none */
    bool compressed;                /* no .metadata: PyTorch could not read the chunks */
    bool has_metadata;
    uint64_t metadata_nbytes;
    struct fsdpck_hash128 metadata_hash;
};

/* Draws a new save id. */
int fsdpck_draw_save_id(const struct fsdpck_io *io, uint8_t uuid[16], struct fsdpck_error *err);

/* Writes everything in the directory except the shard files: assets, .metadata if requested (AUTO: up to 2 million
 * chunks; otherwise opt->note says that it is missing), and last index.json, before the commit. Fills the hashes of
 * assets and .metadata; fsyncs everything. */
int fsdpck_manifest_write(struct fsdpck_manifest *m, const struct fsdpck_io *io, struct fsdpck_commit *commit,
                          enum fsdpck_dcp_mode dcp, const struct fsdpck_options *opt, struct fsdpck_error *err);

#endif
