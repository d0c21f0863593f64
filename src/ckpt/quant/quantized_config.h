/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the quantization_config of a model whose weights a view quantizes. */
#ifndef CKPT_QUANT_QUANTIZED_CONFIG_H
#define CKPT_QUANT_QUANTIZED_CONFIG_H

#include "engine/selection.h"
#include "hf/assets.h"
#include "quant/targets.h"

/* Puts quantization_config into config.json among the assets, with the names of the selected modules that stay as they
 * are, and leaves out files that hold another one. Does nothing if no view quantizes the weights. */
int fsdpck_quantized_config_put(const struct fsdpck_source *src, const struct fsdpck_selection *selection,
                                struct fsdpck_assets_out *assets, struct fsdpck_error *err);

/* Of the view, for the above: whether src is one, its form, and whether a tensor is a matrix that stays as it is. */
bool fsdpck_quantized_by_view(const struct fsdpck_source *src);
const struct fsdpck_quant_target_form *fsdpck_quantized_form(const struct fsdpck_source *src);
bool fsdpck_quantized_is_kept(const struct fsdpck_source *src, size_t ordinal);

#endif
