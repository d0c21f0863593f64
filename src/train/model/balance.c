/* SPDX-License-Identifier: Apache-2.0 */
/* The load balancing loss of a mixture of experts (kernels/experts.h): summed in the forward pass over all layers,
 * because its gradient for any of them depends on all. */
#include "model/bump.h"
#include "model/compute_impl.h"

static bool is_added(const struct compute *c)
{
    return c->balance.probs != NULL;
}

void balance_alloc(struct compute *c, struct bump *v, int64_t ntok)
{
    const int64_t n = c->m->nexperts;
    if (c->m->balance == 0)
        return;
    c->balance.choices = bump_floats(v, 2 * n);
    c->balance.probs = c->balance.choices ? c->balance.choices + n : NULL;
    c->balance.slopes = bump_floats(v, n);
    c->balance.scratch = bump_floats(v, kern_row_blocks(ntok) * n);
}

void balance_begin(struct compute *c)
{
    c->balance.counts = is_added(c);
    if (c->balance.counts)
        c->device->memory->zero(c->stream, c->balance.choices, 2 * (size_t)c->m->nexperts * sizeof(float));
}

void balance_add(struct compute *c, const struct routed *r)
{
    const struct kern_expert_load load = { .ntok = c->batch.nreal,
                                           .nexperts = c->m->nexperts,
                                           .top_k = c->m->top_k,
                                           .logits = r->logits,
                                           .experts = r->experts,
                                           .choices = c->balance.choices,
                                           .probs = c->balance.probs,
                                           .scratch = c->balance.scratch };
    if (c->balance.counts)
        c->device->experts->load(c->stream, &load);
}

void balance_end(struct compute *c)
{
    int64_t nsparse = 0;
    for (int64_t l = 0; l < c->m->nlayer; l++)
        nsparse += c->m->sparse[l];
    const double scale = c->m->balance * (double)c->batch.share;
    const struct kern_expert_balance balance = { .nexperts = c->m->nexperts,
                                                 .nrow = nsparse * c->batch.nreal,
                                                 .choices = c->balance.choices,
                                                 .probs = c->balance.probs,
                                                 .weight = scale / (double)c->batch.grad_scale,
                                                 .sum = c->loss_sum,
                                                 .scale = (float)scale,
                                                 .slopes = c->balance.slopes };
    c->balance.counts = false;
    if (is_added(c) && nsparse > 0)
        c->device->experts->balance(c->stream, &balance);
}

const float *balance_slopes(const struct compute *c)
{
    return is_added(c) ? c->balance.slopes : NULL;
}
