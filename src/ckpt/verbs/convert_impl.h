/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the parts of a conversion: its state after it has laid out its files. */
#ifndef CKPT_CONVERT_IMPL_H
#define CKPT_CONVERT_IMPL_H

#include <fsdpck/convert.h>

#include "engine/transfer.h"
#include "format/manifest.h"
#include "format/shard.h"
#include "verbs/convert_family.h"

struct conversion {
    struct fsdpck_source *src;
    const struct fsdpck_convert_request *req;
    const struct fsdpck_edit *edit;
    struct fsdpck_options opt;
    struct fsdpck_selection selection;
    struct fsdpck_arena arena;
    uint32_t nranks;
    struct fsdpck_by_family by_family; /* if the request asks for it */
    struct fsdpck_mesh *meshes;        /* (nmeshes) the request's, and those of single experts' weights */
    size_t nmeshes;
    int32_t *expert_meshes; /* (coordinates of "ep") position of the mesh of its experts; 0: none has been placed */
    struct fsdpck_shard *shards;     /* (nranks) */
    struct fsdpck_out_file *files;   /* (nranks) */
    struct manifest_file *names;     /* (nranks) */
    struct manifest_tensor *tensors; /* (selection.ntensors) */
    const uint64_t **units;          /* (tensors of src) blocks that stay whole: see quant/units.h */
    struct fsdpck_error no_units;    /* why blocks may be cut; code 0: none is */
    uint32_t first_moved;
    size_t nmoved;             /* tensors that are cut between blocks, where the placement would cut one */
    struct fsdpck_vec chunks;  /* struct fsdpck_out_chunk */
    struct fsdpck_vec entries; /* uint32_t: the chunk's entry in its shard */
    struct fsdpck_transfer_content *contents;
    struct manifest_chunk *stored;
    struct manifest_item *items;
    struct fsdpck_assets_out assets;
    struct fsdpck_manifest manifest;
    struct fsdpck_commit *commit;
    struct fsdpck_out_files *out;
    const char *assets_folder;
    struct fsdpck_error *err;
};

/* Chooses tensors and items, places them on the ranks, and computes the file and offset of every chunk. Opens
 * nothing. */
int fsdpck_convert_lay_out(struct conversion *c);

/* Returns the rank at a row-major position of the mesh that a tensor is placed on, and fills its coordinate. */
uint32_t fsdpck_convert_rank(const struct fsdpck_mesh *mesh, uint32_t position, uint32_t *coord);

/* Adds a chunk of a tensor to a rank's shard. */
int fsdpck_convert_add_chunk(struct conversion *c, uint32_t tensor, uint32_t rank, const uint64_t *offset,
                             const uint64_t *size);

/* For the above: blocks of quantized weights. */
int fsdpck_convert_find_blocks(struct conversion *c);
bool fsdpck_convert_cuts_blocks(const struct conversion *c, uint32_t tensor);
/* Gives the ranks whole blocks; the tensor's chunks are listed then, as no placement describes them. */
int fsdpck_convert_place_blocks(struct conversion *c, uint32_t tensor);
/* Gives a note if a tensor was so placed, or if blocks may be cut. */
void fsdpck_convert_note_blocks(const struct conversion *c);

#endif
