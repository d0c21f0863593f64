/* SPDX-License-Identifier: Apache-2.0 */
/* Gives the parameters of a layout their dtypes and their places in memory. */
#ifndef TRAIN_LAYOUT_PLACE_H
#define TRAIN_LAYOUT_PLACE_H

#include "model/layout.h"

static inline int64_t layout_aligned(int64_t nelem)
{
    return (nelem + 31) / 32 * 32; /* 64 bytes in bf16, 128 in fp32 */
}

/* Sets own_at of each trained parameter: the state that fsdp.offload does not move comes first. */
int layout_order_state(struct layout *l, const struct train_config *config, struct fsdpck_error *err);
/* Sets value_at, shard_at, grad_at and the dtypes of each parameter, and the sizes of memory that follow from them. The
 * parameters are in the order of their groups; how gradients are exchanged is set. */
int layout_place(struct layout *l, const struct train_config *config, struct fsdpck_error *err);

#endif
