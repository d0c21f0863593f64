/* SPDX-License-Identifier: Apache-2.0 */
/* Collects the stored boxes of tensors from any number of files, in any order, and makes one catalogue of them. Lists a
 * box that several ranks hold (replicas) once, turns names that share their bytes into aliases, and refuses boxes that
 * do not fill their tensor. Reads no file. */
#ifndef CKPT_CATALOGUE_H
#define CKPT_CATALOGUE_H

#include "torch/dcp/dcp.h"

/* Where a box of a tensor is stored. */
struct fsdpck_stored_box {
    uint32_t tensor;         /* ordinal in the catalogue */
    uint32_t file;           /* ordinal in the source */
    const uint64_t *box;     /* (2, ndim): offsets, sizes; the source's arena */
    bool found, swap;        /* found: payload counts; else item, item_nbytes, to be looked into later */
    uint64_t payload;        /* file offset of the first element */
    const uint64_t *strides; /* (ndim) elements; NULL: dense. Any arena that lives until finish */
    uint64_t item, item_nbytes;
    bool packed;                   /* the item is a zstd stream */
    struct fsdpck_crc_record *crc; /* where found: the record that holds it; NULL: it has no CRC-32 */
};

enum { FSDPCK_CATALOGUE_MESHES = 16 };

struct fsdpck_catalogue {
    struct fsdpck_source *src;
    struct dcp *dcp;
    struct fsdpck_error *err; /* never NULL */
    struct fsdpck_names names;
    struct fsdpck_names items; /* for the caller: names that several parts list -> ordinal in the source */
    struct fsdpck_names
        places; /* "file@payload …" of each tensor's first chunk -> ordinal: finds names that share their bytes */
    struct fsdpck_vec entries; /* struct catalogue_entry */
    struct fsdpck_vec pieces;  /* struct fsdpck_stored_box */
    const struct fsdpck_mesh
        *meshes[FSDPCK_CATALOGUE_MESHES]; /* (nmeshes) that tensors were placed on, in the source's arena */
    size_t nmeshes;
    struct fsdpck_arena scratch;
};

void fsdpck_catalogue_begin(struct fsdpck_catalogue *c, struct fsdpck_source *src, struct dcp *dcp,
                            struct fsdpck_error *err);
/* A tensor that part `part` (a file, or a rank) lists; another part may list it too, with the same dtype and shape.
 * file: for messages. */
int fsdpck_catalogue_tensor(struct fsdpck_catalogue *c, const char *file, uint32_t part, const char *name,
                            const struct fsdpck_key *path, uint32_t npath, enum fsdpck_dtype dtype, uint32_t ndim,
                            const uint64_t *shape, uint32_t *ordinal);
/* How the tensor was sharded, as a part of it says; copied. What is stored where does not depend on it. */
int fsdpck_catalogue_placed(struct fsdpck_catalogue *c, size_t ordinal, const struct fsdpck_mesh *mesh,
                            const struct fsdpck_placement *placements);
const char *fsdpck_catalogue_name(const struct fsdpck_catalogue *c,
                                  size_t ordinal); /* of a tensor, in order of appearance */
/* Adds a copy; copies box (2 * ndim) into the source's arena, strides into the scratch. Skips empty boxes. */
int fsdpck_catalogue_add_box(struct fsdpck_catalogue *c, const struct fsdpck_stored_box *piece);
/* The first tensor that fewer than nparts parts listed, NULL where there is none; *part: one that does not. */
const char *fsdpck_catalogue_incomplete(const struct fsdpck_catalogue *c, uint32_t nparts, uint32_t *part);
/* Fills the source's tensors and dcp->tensors. file: for messages. */
int fsdpck_catalogue_finish(struct fsdpck_catalogue *c, const char *file);
void fsdpck_catalogue_free(struct fsdpck_catalogue *c);

#endif
