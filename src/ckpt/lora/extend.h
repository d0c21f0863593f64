/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors that a view made out of an adapter's own, taken into the adapter. */
#ifndef CKPT_LORA_EXTEND_H
#define CKPT_LORA_EXTEND_H

#include "lora/adapter.h"

/* Puts n tensors of the source, from ordinal `first` on, behind the others of the selection. like: (n) positions, of
 * tensors whose dtype in the output, and whose kind, they take. Allocates a->joined, in which the caller then notes the
 * tensors that are parts of others. */
int fsdpck_lora_extend(struct fsdpck_lora_adapter *a, size_t first, const int64_t *like, size_t n,
                       struct fsdpck_error *err);

#endif
