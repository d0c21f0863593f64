/* SPDX-License-Identifier: Apache-2.0 */
/* Changes assets before they are written: config.json's dtype, and what says that the weights are quantized. */
#ifndef CKPT_ASSETS_EDIT_H
#define CKPT_ASSETS_EDIT_H

#include "base/hash.h"
#include "hf/assets.h"

/* Returns config.json among the assets, or NULL. */
struct fsdpck_asset_out *fsdpck_assets_config(const struct fsdpck_assets_out *assets);
/* dtype: what config.json's torch_dtype / dtype become; NULL: they stay. dequantized: removes quantization_config from
 * config.json, and the files that hold only it. */
int fsdpck_assets_edit(const struct fsdpck_io *io, struct fsdpck_assets_out *assets, const enum fsdpck_dtype *dtype,
                       bool dequantized, struct fsdpck_error *err);
/* Makes `json` the quantization_config of config.json, if there is one, and leaves out the files that hold another. */
int fsdpck_assets_set_quantized(const struct fsdpck_io *io, struct fsdpck_assets_out *assets, const char *json,
                                struct fsdpck_error *err);
/* FSDPCK_ERR_DAMAGED if the checkpoint states another hash for the asset. */
int fsdpck_asset_check_hash(const struct fsdpck_asset_out *a, const struct fsdpck_hash128 *found,
                            struct fsdpck_error *err);
/* Returns whether the file holds nothing but how the weights are quantized. */
bool fsdpck_asset_is_quantization(const char *path);

#endif
