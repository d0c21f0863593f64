/* A step's gradients. The micro-batches of the global batch make packets, packets are dealt out to ranks, and what comes out does not depend on how many ranks
 * there are: inside a packet gradients add up in order, packets are folded in global order by the owners of the slices. */
#include <stdlib.h>
#include <string.h>

#include "run/rank.h"

static int before_group(void *ctx, uint32_t group, struct fsdpck_error *err)
{
    struct rank *r = ctx;
    const struct layout *l = &r->job->layout;
    for (size_t i = 0; i < l->nparams; i++) {
        const struct param *p = &l->params[i];
        if (p->group != group)
            continue;
        int rc = r->comm->ops->gather(r->comm, r->comm->values + p->value_at, (size_t)(p->chunk * p->ncol * kern_dtype_bytes(p->dtype)), err);
        if (rc)
            return rc;
    }
    return 0;
}

static void fill_batch(struct rank *r, const struct step_plan *plan, const struct micro_batch *micro)
{
    struct batch *b = &r->compute->batch;
    b->ntok = micro->ntok;
    b->ndocs = (int64_t)micro->ndocs;
    b->token0 = micro->token0;
    b->step = (uint32_t)r->step;
    b->grad_scale = (float)(1.0 / (double)plan->nsupervised);
    data_fill(r->job->data, micro, b->ids, b->positions, b->targets, b->cu_seqlens);
}

/* A packet, alone: its gradients in comm->contribution, its loss summed over micro-batches in order. */
static int run_packet(struct rank *r, const struct step_plan *plan, size_t first, size_t end, double *loss, struct fsdpck_error *err)
{
    const struct compute_hook hook = { before_group, r };
    int rc = 0;
    memset(r->comm->contribution, 0, (size_t)r->job->layout.grad_nelem * sizeof(float));
    *loss = 0;
    for (size_t i = first; i < end && !rc; i++) {
        double part = 0;
        fill_batch(r, plan, &plan->micros[i]);
        rc = compute_micro(r->compute, &hook, &part, err);
        *loss += part;
    }
    return rc;
}

/* Every rank's packet loss, added in global order. */
static int fold_losses(struct rank *r, double mine, uint32_t npackets, double *loss, struct fsdpck_error *err)
{
    uint64_t bits[COMM_MAX_SUM] = { 0 };
    memcpy(&bits[r->comm->rank], &mine, sizeof mine);
    int rc = r->comm->ops->sum_u64(r->comm, bits, r->comm->nranks, err);
    for (uint32_t q = 0; q < npackets && !rc; q++) {
        double part;
        memcpy(&part, &bits[q], sizeof part);
        *loss += part;
    }
    return rc;
}

int rank_gradients(struct rank *r, const struct step_plan *plan, double *loss, struct fsdpck_error *err)
{
    size_t per = r->job->config->train.accumulation, npackets = (plan->nmicros + per - 1) / per;
    uint32_t n = r->comm->nranks;
    int rc = 0;
    *loss = 0;
    for (size_t wave = 0; wave < npackets && !rc; wave += n) {
        size_t packet = wave + r->comm->rank, in_wave = npackets - wave < n ? npackets - wave : n;
        double mine = 0;
        r->at(r->comm, r->step + 1, "forward and backward");
        if (packet < npackets)
            rc = run_packet(r, plan, packet * per, (packet + 1) * per < plan->nmicros ? (packet + 1) * per : plan->nmicros, &mine, err);
        if (!rc)
            rc = r->comm->ops->exchange(r->comm, r->slices, r->nslices, (uint32_t)in_wave, wave == 0, err);
        if (!rc)
            rc = fold_losses(r, mine, (uint32_t)in_wave, loss, err);
    }
    *loss /= (double)plan->nsupervised;
    return rc;
}
