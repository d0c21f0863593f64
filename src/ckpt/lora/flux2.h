/* SPDX-License-Identifier: Apache-2.0 */
/* Adapters of a FLUX.2 transformer, from diffusers' names to those of Black Forest Labs' own files, which sd-scripts,
 * ai-toolkit and ComfyUI use. */
#ifndef CKPT_LORA_FLUX2_H
#define CKPT_LORA_FLUX2_H

#include "lora/adapter.h"

/* Whether the configuration names FLUX.2's class, or a module has a name that only it has among diffusers' models. */
bool fsdpck_lora_is_flux2(const struct fsdpck_lora_adapter *a);

/* Gives the modules of the transformer the paths "diffusion_model.double_blocks.0.img_attn.qkv" and so on. Those of
 * queries, keys and values become one, whose A [r, in] are stacked and whose B [out, r] are the blocks of a diagonal;
 * of one that is absent, B has rows of zeros. The halves of norm_out.linear's B change places: scale and shift there,
 * shift and scale here. fold: multiplies each scaling into B, rounded to its dtype; without it only where the three of
 * an attention differ in theirs. The new tensors come behind the others of the source, which becomes a view. Refused:
 * modules that FLUX.2 has not; DoRA of modules whose B changes its rows. After a failure the source can only be closed.
 * Source of the layout: loaders/lora_conversion_utils.py of diffusers 0.42, which reads these files. */
int fsdpck_lora_flux2(struct fsdpck_lora_adapter *a, bool fold, const struct fsdpck_options *opt,
                      struct fsdpck_error *err);

#endif
