/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the parts of an export: its state after it has chosen the tensors to write. */
#ifndef CKPT_EXPORT_IMPL_H
#define CKPT_EXPORT_IMPL_H

#include <fsdpck/export.h>

#include "commit/commit.h"
#include "engine/transfer.h"
#include "hf/assets.h"
#include "verbs/export_layout.h"
#include "verbs/export_with.h"

struct export
{
    struct fsdpck_source *src;
    const struct fsdpck_export_request *req;
    const struct fsdpck_export_with *with;
    struct fsdpck_options opt; /* defaults filled in */
    const struct fsdpck_io *io;
    bool one_file;
    struct fsdpck_selection selection;
    bool cast; /* floating-point tensors are written as `dtype` */
    enum fsdpck_dtype dtype;
    struct fsdpck_assets_out assets;
    struct export_layout layout;
    struct fsdpck_arena arena; /* of the layout's names, shapes and pieces, where they are made for a rank */
    struct fsdpck_commit *commit;
    uint8_t uuid[16];
    char **names;                  /* (layout.nfiles) in the folder */
    char **paths;                  /* (layout.nfiles) their paths during the export */
    struct fsdpck_out_file *files; /* (layout.nfiles) */
    struct fsdpck_transfer_result result;
    struct fsdpck_error *err;
};

/* Chooses the tensors, names and assets to write, and divides them into files. Writes nothing. */
int fsdpck_export_choose(struct export *x);
/* A training checkpoint holds a model in the precision that its optimizer needs. Unless the request names a dtype, the
 * selected tensors are written in the model's earlier dtype: the one in the checkpoint's state, or else in config.json
 * among the assets. */
int fsdpck_export_dtype_by_state(struct export *x);
int fsdpck_export_dtype_by_config(struct export *x);

#endif
