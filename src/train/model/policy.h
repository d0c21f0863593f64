/* SPDX-License-Identifier: Apache-2.0 */
/* fsdp.policy: what holds for each group of the layout, from the first object that matches it or from fsdp itself. Must
 * not know ranks or buffers. */
#ifndef TRAIN_POLICY_H
#define TRAIN_POLICY_H

#include "model/policy_match.h"

struct group_policy {
    int32_t object;   /* of fsdp.policy; POLICY_NONE: none matches */
    int32_t of_block; /* the object that matches the whole block, and sets its types and its recomputation */
    enum train_sharding strategy;
    bool stays; /* gathered once, and kept for the whole step. The embedding and the head do, unless an object says
                   otherwise for both of them */
    bool keeps; /* each rank keeps a part for the backward pass */
    enum train_recompute checkpointing; /* of the block */
    enum train_wrap wrap;
    enum kern_dtype dtype;  /* of the block's parameters, and of what they are used for */
    enum kern_dtype reduce; /* to which its gradients are rounded before they are exchanged */
    bool offloads;          /* fsdp.offload moves its optimizer state */
    uint64_t min_num_params;
    uint32_t forward_prefetch, backward_prefetch;
};

/* *out: (l->ngroups) allocated; the caller frees it. */
int policy_make(const struct train_config *config, const struct layout *l, struct group_policy **out,
                struct fsdpck_error *err);
/* Sets which blocks are recomputed. */
void policy_recompute(const struct group_policy *all, struct layout *l);
/* Refuses objects that match no group, and keys of objects that contradict another key or can do nothing for the groups
 * that the object matches. */
int policy_check(const struct train_config *config, const struct layout *l, struct fsdpck_error *err);

#endif
