/* SPDX-License-Identifier: Apache-2.0 */
/* Merges an adapter into the weights of a base: finds and checks the tensor that each adapter tensor changes, and
 * changes values during the transfer. */
#ifndef CKPT_LORA_MERGE_H
#define CKPT_LORA_MERGE_H

#include "engine/transfer.h"
#include "lora/operands.h"

struct fsdpck_lora_merge;

/* memory_nbytes: limit for factors. base and a must outlive the merge. */
int fsdpck_lora_merge_new(struct fsdpck_source *base, struct fsdpck_lora_adapter *a, const struct fsdpck_options *opt,
                          uint64_t memory_nbytes, struct fsdpck_lora_merge **out, struct fsdpck_error *err);
void fsdpck_lora_merge_free(struct fsdpck_lora_merge *m);
/* For the transfer; lives as long as m. */
const struct fsdpck_edit *fsdpck_lora_merge_edit(struct fsdpck_lora_merge *m);

#endif
