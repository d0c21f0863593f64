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

/* Norms, weights and adapters of a group have one dtype; some are fp32 all the same. */
enum kern_dtype layout_dtype(const struct layout *l, uint32_t group)
{
    const int32_t some = group == 0                ? l->embed.w
                         : group == l->ngroups - 1 ? l->norm
                         : l->layers               ? l->layers[group - 1].norm1
                                                   : flux2_norm(l, group - 1);
    return l->params[some].dtype;
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
        p->value_at = l->value_nbytes;
        l->value_nbytes += param_value_nbytes(l, p);
        p->shard_at = l->shard_nbytes;
        l->shard_nbytes += param_shard_nbytes(p);
    }
    free(policy);
    return rc;
}

static int64_t first_trained_layer(const struct layout *l)
{
    uint32_t first = l->ngroups;
    for (size_t i = 0; i < l->nparams; i++) {
        if (l->params[i].trainable && l->params[i].group < first)
            first = l->params[i].group;
    }
    const int64_t layer = (int64_t)first - 1, nlayer = (int64_t)l->ngroups - 2;
    return layer < 0 ? 0 : layer < nlayer ? layer : nlayer;
}

int layout_place(struct layout *l, const struct train_config *config, struct fsdpck_error *err)
{
    int rc = place_values(l, config, err);
    if (rc)
        return rc;
    l->first_trained_layer = first_trained_layer(l);
    place_grads(l);
    return 0;
}
