/* SPDX-License-Identifier: Apache-2.0 */
#include "model/layout_place.h"

#include <stdlib.h>

#include "model/flux2_layout.h"
#include "model/policy.h"

/* Whole cache lines; of fp32, as many lines as bf16 of the same shape would take, twice. */
static size_t aligned_rows(const struct param *p, int64_t nrow)
{
    return p->packed ? (size_t)(nrow * param_row_nbytes(p) + 63) / 64 * 64
                     : (size_t)(layout_aligned(nrow * p->ncol) * kern_dtype_bytes(p->dtype));
}

size_t param_value_nbytes(const struct layout *l, const struct param *p)
{
    return aligned_rows(p, p->chunk * l->nranks);
}

size_t param_shard_nbytes(const struct param *p)
{
    return aligned_rows(p, p->chunk);
}

uint32_t layout_block_of(const struct layout *l, uint32_t group)
{
    uint32_t low = 0, high = l->nblocks;
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        *(layout_first_group(l, middle) <= group ? &low : &high) = middle;
    }
    return low;
}

/* Norms, weights and adapters of a group have one dtype; some are fp32 all the same. */
enum kern_dtype layout_dtype(const struct layout *l, uint32_t group)
{
    const int32_t some = group == 0                ? l->embed.w
                         : group == l->ngroups - 1 ? l->norm
                         : l->layers               ? l->layers[layout_block_of(l, group)].norm1
                                                   : flux2_norm(l, layout_block_of(l, group));
    return l->params[some].dtype;
}

enum kern_dtype layout_widest(const struct layout *l)
{
    enum kern_dtype widest = layout_dtype(l, 0);
    for (uint32_t g = 0; g < l->ngroups; g++)
        widest = layout_dtype(l, g) == KERN_F32 ? KERN_F32 : widest;
    return widest;
}

/* The largest gradient size of groups with this parity, without the embedding's group. */
static int64_t largest_grads(const struct layout *l, uint32_t parity)
{
    int64_t most = 0, sum = 0;
    for (size_t i = 0; i < l->nparams; i++) {
        const struct param *p = &l->params[i];
        if (i > 0 && l->params[i - 1].group != p->group)
            sum = 0;
        sum += p->trainable && p->group > 0 && p->group % 2 == parity ? layout_aligned(p->nrow * p->ncol) : 0;
        most = sum > most ? sum : most;
    }
    return most;
}

/* Assigns addresses to gradients. Where groups take turns, a group's gradients are needed only until its backward pass,
 * or its exchange, is over; then groups share memory. */
static void place_grads(struct layout *l)
{
    int64_t at = 0, shared = 0,
            second = l->nranks > 1 ? largest_grads(l, 1) : 0; /* shared: starts after the embedding's gradients */
    for (size_t i = 0; i < l->nparams; i++) {
        struct param *p = &l->params[i];
        if (l->grads_take_turns && p->group > 0 && l->params[i - 1].group != p->group)
            at = shared + (p->group % 2 ? 0 : second);
        p->grad_at = at;
        at += p->trainable ? layout_aligned(p->nrow * p->ncol) : 0;
        shared = p->group == 0 ? at : shared;
        l->grad_nelem = at > l->grad_nelem ? at : l->grad_nelem;
    }
}

static void place_some(struct layout *l, bool owned)
{
    for (size_t i = 0; i < l->nparams; i++) {
        struct param *p = &l->params[i];
        if (p->owned != owned)
            continue;
        p->value_at = l->value_nbytes;
        l->value_nbytes += param_value_nbytes(l, p);
        p->shard_at = l->shard_nbytes;
        l->shard_nbytes += param_shard_nbytes(p);
    }
}

/* Assigns dtypes, and addresses of values. */
static int place_values(struct layout *l, const struct train_config *config, struct fsdpck_error *err)
{
    struct group_policy *policy;
    int rc = policy_make(config, l, &policy, err);
    for (size_t i = 0; i < l->nparams && !rc; i++) {
        struct param *p = &l->params[i];
        p->dtype = p->keeps_fp32 ? KERN_F32 : policy[p->group].dtype;
        p->reduce = policy[p->group].reduce;
        l->masters |= p->dtype == KERN_BF16;
    }
    if (!rc)
        policy_recompute(policy, l);
    free(policy);
    if (rc)
        return rc;
    place_some(l, false);
    place_some(l, true);
    return 0;
}

static int64_t first_trained_layer(const struct layout *l)
{
    uint32_t first = l->ngroups;
    for (size_t i = 0; i < l->nparams; i++) {
        if (l->params[i].trainable && l->params[i].group < first)
            first = l->params[i].group;
    }
    if (first == 0)
        return 0;
    return first < l->ngroups - 1 ? layout_block_of(l, first) : l->nblocks;
}

static void own(struct layout *l, int32_t param)
{
    if (param >= 0)
        l->params[param].owned = true;
}

static void own_linear(struct layout *l, const struct linear *x)
{
    own(l, x->w);
    own(l, x->bias);
    if (x->r) {
        own(l, x->a);
        own(l, x->b);
    }
}

/* Marks the parameters of experts that are whole on ranks. */
static void own_experts(struct layout *l)
{
    for (int64_t i = 0; l->layers && i < l->nblocks; i++) {
        const struct layer *layer = &l->layers[i];
        for (int64_t e = 0; e < layer->nexperts; e++) {
            const struct mlp *x = &layer->experts[e];
            own_linear(l, &x->gate);
            if (!x->joined)
                own_linear(l, &x->up);
            own_linear(l, &x->down);
        }
        if (layer->nexperts)
            own(l, layer->down_bias);
    }
}

int layout_order_state(struct layout *l, const struct train_config *config, struct fsdpck_error *err)
{
    struct group_policy *policy;
    int rc = policy_make(config, l, &policy, err);
    if (rc)
        return rc;
    l->own_nelem = 0;
    for (int moves = 0; moves < 2; moves++) {
        l->own_moved = l->own_nelem;
        for (size_t i = 0; i < l->nparams; i++) {
            struct param *p = &l->params[i];
            if (!p->trainable || policy[p->group].offloads != (moves == 1))
                continue;
            p->own_at = l->own_nelem;
            l->own_nelem += layout_aligned(p->chunk * p->ncol);
        }
    }
    free(policy);
    return 0;
}

int layout_place(struct layout *l, const struct train_config *config, struct fsdpck_error *err)
{
    if (config->fsdp.expert_parallel > 1)
        own_experts(l);
    int rc = place_values(l, config, err);
    if (rc)
        return rc;
    l->first_trained_layer = first_trained_layer(l);
    place_grads(l);
    return 0;
}
