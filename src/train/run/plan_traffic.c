/* SPDX-License-Identifier: Apache-2.0 */
#include "run/plan_traffic.h"

#include <stdlib.h>

#include "comm/chain_rule.h"
#include "rank/gather.h"

static uint64_t param_trained_nbytes(const struct param *p)
{
    return p->trainable ? (uint64_t)(p->nrow * p->ncol) * kern_dtype_bytes(p->dtype) : 0;
}

static uint64_t trained_nbytes(const struct layout *l)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < l->nparams; i++)
        sum += param_trained_nbytes(&l->params[i]);
    return sum;
}

/* New values that come to a rank, or to the ranks that share memory: what they hold but do not own. */
static uint64_t spread_nbytes(const struct job *job)
{
    const uint64_t n = job_nsharing(job), nranks = job->nranks;
    uint64_t sum = 0;
    for (size_t i = 0; i < job->layout.nparams; i++) {
        const struct param *p = &job->layout.params[i];
        const uint64_t held = n < p->nshards ? n : p->nshards, nbytes = param_trained_nbytes(p);
        sum += nbytes * (held * (nranks / p->nshards) - n);
    }
    return sum / (nranks * n);
}

/* Elements that a rank owns of the largest exchange: of all parameters, or of those of a group. */
static uint64_t exchanged_nelem(const struct job *job)
{
    const struct layout *l = &job->layout;
    uint64_t largest = 0, sum = 0;
    for (size_t i = 0; i < l->nparams; i++) {
        const struct param *p = &l->params[i];
        sum = i && l->grads_by_group && p->group != l->params[i - 1].group ? 0 : sum;
        sum += p->trainable ? (uint64_t)(p->chunk * p->ncol) : 0;
        largest = sum > largest ? sum : largest;
    }
    return largest;
}

/* Buffers for gradients from other hosts, of a rank on the first one: sums, or two contributions. */
static uint64_t exchange_nbytes(const struct job *job, uint64_t npackets)
{
    const uint32_t nsharing = job_nsharing(job);
    const uint64_t nowned = exchanged_nelem(job);
    const size_t element = job_reduce_widest(job);
    if (!job->opt->several_hosts || job_has_device_memory(job) || npackets <= nsharing)
        return 0;
    return chain_pays((npackets + nsharing - 1) / nsharing, npackets - nsharing, element) ? chain_nbytes(nowned)
                                                                                          : 2 * nowned * element;
}

/* --- between hosts */

/* Gathers of a micro-batch: a host gets the chunks that none of its ranks holds, once. */
static int gathers_from_hosts(const struct job *job, bool first, uint64_t *nbytes, struct fsdpck_error *err)
{
    const uint64_t nsharing = job_nsharing(job);
    uint32_t unused, n = compute_uses(&job->layout, &unused, NULL);
    struct gather_use *uses = calloc(n, sizeof *uses);
    uint32_t *use_of = calloc(n, sizeof *use_of);
    *nbytes = 0;
    int rc = uses && use_of ? gather_timeline(job, false, false, uses, use_of, &n, err)
                            : fsdpck_error_nomem(err, n * sizeof *uses);
    for (uint32_t u = 0; u < n && !rc; u++)
        if (uses[u].within > nsharing)
            *nbytes +=
                (first ? uses[u].first_nbytes : uses[u].later_nbytes) * (uses[u].within - nsharing) / uses[u].within;
    free(uses);
    free(use_of);
    return rc;
}

/* Of gradients of one size, nelem in all, in a wave: what enters all hosts, by comm_mpi_exchange.c's rule. */
static uint64_t sized_from_hosts(const struct job *job, uint64_t npackets, bool first, size_t element, uint64_t nelem)
{
    const uint64_t n = job_nsharing(job), nhosts = job->nranks / n, last = (npackets - 1) / n;
    uint64_t sum = 0;
    for (uint64_t host = 0; host < nhosts; host++) {
        const uint64_t before = host * n < npackets ? npackets - host * n : 0, own = before < n ? before : n,
                       hops = last + (host != last) + (!first && host != 0), others = npackets - own;
        sum += chain_pays(hops, others, element) ? hops * sizeof(float) : others * element;
    }
    return sum * nelem / nhosts;
}

/* Gradients of a wave that enter all hosts. Of n elements in b bytes, b / 2 - n are fp32. */
static uint64_t sums_from_hosts(const struct job *job, uint64_t npackets, bool first)
{
    const uint64_t ntrained = (uint64_t)job->layout.ntrained, wide = job_reduce_nbytes(job) / 2 - ntrained;
    return sized_from_hosts(job, npackets, first, sizeof(float), wide) +
           sized_from_hosts(job, npackets, first, sizeof(uint16_t), ntrained - wide);
}

/* A step after the first ones, which gather what is frozen. Only where the ranks of a host share memory. */
static int count_from_hosts(const struct job *job, uint64_t npackets, uint64_t nmicros, struct train_plan *out,
                            struct fsdpck_error *err)
{
    const uint64_t n = job_nsharing(job);
    uint64_t first = 0, later = 0, sums = 0;
    int rc = 0;
    if (!job->opt->several_hosts || !nmicros)
        return 0;
    if (n != job->nlocal) {
        out->from_hosts_step_nbytes = UINT64_MAX;
        return 0;
    }
    if (!job_hosts_hold_all(job)) {
        rc = gathers_from_hosts(job, true, &first, err);
        if (!rc)
            rc = gathers_from_hosts(job, false, &later, err);
    }
    for (uint64_t at = 0; at < npackets; at += job->nranks)
        sums += sums_from_hosts(job, npackets - at < job->nranks ? npackets - at : job->nranks, at == 0);
    out->from_hosts_step_nbytes =
        (first + (nmicros - 1) * later) * (job->nranks / n) + sums + out->spread_step_nbytes * job->nranks;
    return rc;
}

/* Traffic of rank 0 in a step; this rank has a packet in every wave. */
int plan_traffic(const struct job *job, bool separate_memory, bool linked, struct train_plan *out,
                 struct fsdpck_error *err)
{
    struct gather_sizes sizes = { 0 };
    struct step_plan step;
    int rc = data_step(job->data, job->config, 0, &step, err);
    if (!rc)
        rc = gather_count(job, separate_memory, linked, &sizes, err);
    uint64_t per = job->config->train.accumulation, npackets = (step.nmicros + per - 1) / per,
             nwaves = (npackets + job->nranks - 1) / job->nranks;
    uint64_t micros = step.nmicros < nwaves * per ? step.nmicros : nwaves * per;
    out->gathered_step_nbytes = micros ? sizes.received_nbytes + (micros - 1) * sizes.received_later_nbytes : 0;
    out->spread_step_nbytes = job_has_replicas(job, linked) ? spread_nbytes(job) : 0;
    out->reduced_step_nbytes = (npackets - nwaves) * job_reduce_nbytes(job) / job->nranks;
    out->offload_written_nbytes = (job->offload.in_memory ? 0 : job->offload.step_nbytes) +
                                  (job_offloads_params(job) ? trained_nbytes(&job->layout) / job->nranks : 0) +
                                  (job->offload.gradients ? nwaves * (uint64_t)job->layout.own_nelem * 4 : 0);
    out->exchange_nbytes = exchange_nbytes(job, npackets < job->nranks ? npackets : job->nranks);
    if (job_hosts_hold_all(job)) {
        out->gathered_step_nbytes = 0;
    } else {
        out->buffer_nbytes = sizes.buffer_nbytes / job_nsharing(job);
        out->kept_nbytes = job_keeps(job, linked) ? sizes.kept_used_nbytes * (job->nranks / job->mesh.nkept) : 0;
    }
    if (!rc)
        rc = count_from_hosts(job, npackets, micros, out, err);
    step_plan_free(&step);
    return rc;
}
