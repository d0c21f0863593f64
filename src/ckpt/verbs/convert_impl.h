/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the parts of a conversion: its state after it has laid out its files. */
#ifndef CKPT_CONVERT_IMPL_H
#define CKPT_CONVERT_IMPL_H

#include <fsdpck/convert.h>

#include "engine/transfer.h"
#include "format/manifest.h"
#include "format/shard.h"

struct conversion {
    struct fsdpck_source *src;
    const struct fsdpck_convert_request *req;
    const struct fsdpck_edit *edit;
    struct fsdpck_options opt;
    struct fsdpck_selection selection;
    struct fsdpck_arena arena;
    uint32_t nranks;
    struct fsdpck_shard *shards;     /* (nranks) */
    struct fsdpck_out_file *files;   /* (nranks) */
    struct manifest_file *names;     /* (nranks) */
    struct manifest_tensor *tensors; /* (selection.ntensors) */
    struct fsdpck_vec chunks;        /* struct fsdpck_out_chunk */
    struct fsdpck_vec entries;       /* uint32_t: the chunk's entry in its shard */
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

#endif
