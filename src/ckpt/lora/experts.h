/* SPDX-License-Identifier: Apache-2.0 */
/* Adapters of fused experts: A and B of all experts of a layer in one tensor each, in the layouts of PEFT (before and
 * since 0.19.1), Unsloth, SGLang and Megatron-Bridge. Presents them as one pair for each expert. Knows no base. */
#ifndef CKPT_LORA_EXPERTS_H
#define CKPT_LORA_EXPERTS_H

#include "lora/adapter.h"

/* Turns the adapter's source into a view where each expert has a pair of matrices of its own,
 * "….experts.3.gate_up_proj.lora_A.weight", as they would be for a linear layer, if it has fused experts. The adapter's
 * configuration must have been read. Refuses an adapter whose layout is not certain. Afterwards the tensors of `a` are
 * stale: fsdpck_lora_adapter_find() must run again. */
int fsdpck_lora_experts_split(struct fsdpck_lora_adapter *a, const struct fsdpck_lora_request *req,
                              struct fsdpck_lora_split *split, struct fsdpck_error *err);
/* Returns the path of a single expert's module as the configuration has it: "….experts.gate_up_proj". */
const char *fsdpck_lora_experts_path(struct fsdpck_arena *arena, const char *path, struct fsdpck_lora_split split,
                                     struct fsdpck_error *err);

#endif
