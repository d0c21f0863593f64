/* SPDX-License-Identifier: Apache-2.0 */
/* Pairs of single experts, joined to pairs of all experts of a layer. */
#ifndef CKPT_LORA_FUSE_H
#define CKPT_LORA_FUSE_H

#include "lora/adapter.h"

/* Puts one module for each layer's gate_up_proj and down_proj in place of those of single experts, and their tensors
 * behind the others of the source, which becomes a view. stacked: in three dimensions, as SGLang has them; else as
 * PEFT. An adapter without experts stays as it is. Refused: a layer that lacks an expert or a half of gate and up, or
 * whose experts differ in shape, dtype or scaling. After a failure the source can only be closed. */
int fsdpck_lora_fuse(struct fsdpck_lora_adapter *a, bool stacked, struct fsdpck_error *err);

#endif
