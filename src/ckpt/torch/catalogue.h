/* SPDX-License-Identifier: Apache-2.0 */
/* Collects the stored boxes of tensors from any number of files, in any order, and makes one catalogue of them. A box
 * that several ranks hold (replicas) is listed once. Names that share their bytes become aliases. Boxes that do not
 * fill their tensor are refused. Reads no file. */
#ifndef CKPT_CATALOGUE_H
#define CKPT_CATALOGUE_H

#include "torch/dcp/dcp.h"

/* The location of a box of a tensor. */
struct fsdpck_stored_box {
    uint32_t tensor;         /* ordinal in the catalogue */
    uint32_t file;           /* ordinal in the source */
    const uint64_t *box;     /* (2, ndim): offsets, sizes; the source's arena */
    bool found, swap;        /* found: payload is valid; else item and item_nbytes are, to be read later */
    uint64_t payload;        /* file offset of the first element */
    const uint64_t *strides; /* (ndim) elements; NULL: dense. Any arena that lives until finish */
    uint64_t item, item_nbytes;
    bool packed;                   /* the item is a zstd stream */
    struct fsdpck_crc_record *crc; /* if found: the record that holds it; NULL: the record has no CRC-32 */
};

enum { FSDPCK_CATALOGUE_MESHES = 16 };

struct fsdpck_catalogue {
    struct fsdpck_source *src;
    struct dcp *dcp;
    struct fsdpck_error *err; /* never NULL */
    struct fsdpck_names names;
    struct fsdpck_names items; /* for the caller: names listed by several ranks -> ordinal in the source */
    struct fsdpck_names
        locations; /* "file@payload …" of each tensor's first chunk -> ordinal: finds names that share their bytes */
    struct fsdpck_vec entries; /* struct catalogue_entry */
    struct fsdpck_vec pieces;  /* struct fsdpck_stored_box */
    const struct fsdpck_mesh
        *meshes[FSDPCK_CATALOGUE_MESHES]; /* (nmeshes) meshes that tensors are placed on, in the source's arena */
    size_t nmeshes;
    struct fsdpck_arena scratch;
};

void fsdpck_catalogue_begin(struct fsdpck_catalogue *c, struct fsdpck_source *src, struct dcp *dcp,
                            struct fsdpck_error *err);
/* Adds a tensor that rank `rank` lists (0: the only file). Other ranks may list it too, with the same dtype and shape.
 * file: for messages. */
int fsdpck_catalogue_tensor(struct fsdpck_catalogue *c, const char *file, uint32_t rank, const char *name,
                            const struct fsdpck_key *path, uint32_t npath, enum fsdpck_dtype dtype, uint32_t ndim,
                            const uint64_t *shape, uint32_t *ordinal);
/* Records how a rank says that the tensor was sharded; copies it. The locations of the bytes do not depend on it. */
int fsdpck_catalogue_set_placements(struct fsdpck_catalogue *c, size_t ordinal, const struct fsdpck_mesh *mesh,
                                    const struct fsdpck_placement *placements);
const char *fsdpck_catalogue_name(const struct fsdpck_catalogue *c,
                                  size_t ordinal); /* the tensor's, in order of appearance */
/* Adds a copy; copies box (2 * ndim) into the source's arena, strides into the scratch. Skips empty boxes. */
int fsdpck_catalogue_add_box(struct fsdpck_catalogue *c, const struct fsdpck_stored_box *piece);
/* Returns the first tensor that fewer than nranks ranks list, or NULL; *rank: a rank that does not list it. */
const char *fsdpck_catalogue_incomplete(const struct fsdpck_catalogue *c, uint32_t nranks, uint32_t *rank);
/* Fills the source's tensors and dcp->tensors. file: for messages. */
int fsdpck_catalogue_finish(struct fsdpck_catalogue *c, const char *file);
void fsdpck_catalogue_free(struct fsdpck_catalogue *c);

#endif
