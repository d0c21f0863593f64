/* SPDX-License-Identifier: Apache-2.0 */
/* Computes the gradients of a step. The micro-batches of the global batch form packets, which are distributed over
 * ranks. The result does not depend on the number of ranks: gradients are added in order inside a packet, and the owner
 * of each slice folds packets in global order. */
#include "run/step.h"

#include <stdlib.h>
#include <string.h>

#include "comm/reducer.h"
#include "data/data_pictures.h"
#include "rank/gather.h"
#include "rank/grad_file.h"
#include "run/optimize.h"

void step_fill(struct batch *b, const struct data *data, const struct step_plan *plan, const struct micro_batch *micro,
               uint64_t step)
{
    b->ntok = micro->ntok;
    b->ndocs = (int64_t)micro->ndocs;
    *b->rng_offset = (struct kern_rng_offset){ .token0 = micro->token0, .step = (uint32_t)step };
    b->grad_scale = (float)(1.0 / (double)plan->nsupervised);
    b->share = (float)(1.0 / (double)plan->nmicros);
    data_fill(data, micro, b->ids, b->positions, b->targets, b->cu_seqlens);
}

static int fill_picture(struct rank *r, const struct data *data, const struct step_plan *plan,
                        const struct micro_batch *micro, struct fsdpck_error *err)
{
    struct batch *b = &r->compute->batch;
    struct picture *p = &b->picture;
    struct picture_sample s = { .latents = p->latents, .noise = p->noise, .text = p->text };
    int rc = data_fill_picture(data, micro, r->job->config, data == r->job->eval ? UINT64_MAX : r->step, &s, err);
    p->height = s.height;
    p->width = s.width;
    p->sigma = s.sigma;
    p->weight = s.weight;
    *b->rng_offset = (struct kern_rng_offset){ .token0 = micro->token0, .step = (uint32_t)r->step };
    b->grad_scale = (float)(1.0 / (double)plan->nsupervised);
    return rc;
}

int rank_fill(struct rank *r, const struct data *data, const struct step_plan *plan, const struct micro_batch *micro,
              struct fsdpck_error *err)
{
    if (data_has_pictures(data))
        return fill_picture(r, data, plan, micro, err);
    step_fill(&r->compute->batch, data, plan, micro, r->step);
    return 0;
}

size_t step_npackets(const struct step_plan *plan, size_t per)
{
    return (plan->nmicros + per - 1) / per;
}

struct packet step_packet(const struct step_plan *plan, size_t per, size_t wave, uint32_t rank)
{
    size_t first = (wave + rank) * per, most = plan->nmicros - wave * per;
    return (struct packet){ .first = first < plan->nmicros ? first : plan->nmicros,
                            .end = first + per < plan->nmicros ? first + per : plan->nmicros,
                            .nturns = most < per ? most : per };
}

/* Context of the hooks of a micro-batch. */
struct hook_context {
    struct rank *r;
    struct compute_hook gather;
    uint32_t in_wave; /* number of packets */
    bool first_of_step;
    bool last; /* last micro-batch of the packet: the groups' gradients are complete and can be exchanged */
};

/* Reports progress within the first step, which is the only sign of life until that step ends. */
static void report_first_step(struct rank *r)
{
    if (r->passes.total)
        rank_report_progress(r, TRAIN_FIRST_STEP, ++r->passes.done < r->passes.total ? r->passes.done : r->passes.total,
                             r->passes.total);
}

static int before_group(void *ctx, uint32_t group, struct fsdpck_error *err)
{
    struct hook_context *p = ctx;
    report_first_step(p->r);
    return p->gather.before_group(p->gather.ctx, group, err);
}

static void after_group(void *ctx, uint32_t group)
{
    struct hook_context *p = ctx;
    p->gather.after_group(p->gather.ctx, group);
}

static void clean(const struct rank *r, float *contribution, const struct comm_slice *slices, size_t nslices)
{
    for (size_t i = 0; i < nslices; i++)
        r->compute->device->memory->zero(r->compute->stream, contribution + slices[i].at,
                                         (size_t)slices[i].nelem * sizeof(float));
}

void step_clean(const struct rank *r, float *contribution)
{
    clean(r, contribution, r->slices, r->nslices);
}

static int begin_sums(void *ctx, uint32_t group, bool first, struct fsdpck_error *err)
{
    const struct rank *r = ctx;
    return grad_file_begin(r->grads, group, first, err);
}

static int end_sums(void *ctx, uint32_t group, struct fsdpck_error *err)
{
    struct rank *r = ctx;
    rank_sum_group(r, group, r->sums_stream ? r->sums_stream : r->compute->stream);
    return grad_file_store(r->grads, group, err);
}

/* An exchange that the rank waits for. */
static int exchange(struct rank *r, const struct reducer_job *job, struct fsdpck_error *err)
{
    struct offload_times none = { 0 }, *file = r->grads ? grad_file_times(r->grads) : &none;
    const uint64_t before = r->comm->wait_ns, busy_ns = file->busy_ns;
    int rc = reducer_exchange(r->comm, job, err);
    file->waited_ns += file->busy_ns - busy_ns;
    r->exchanged_ns += r->comm->wait_ns - before;
    return rc;
}

/* Sends a group's gradients to their owners. If groups take turns in a buffer, its place is zeroed for the group after
 * the next. */
static int reduce_group(void *ctx, uint32_t group, struct fsdpck_error *err)
{
    struct hook_context *p = ctx;
    struct rank *r = p->r;
    size_t first = r->group_slices[group], n = r->group_slices[group + 1] - first;
    struct reducer_job job = {
        r->slices + first, n, p->in_wave, p->first_of_step, r->job->layout.grads_take_turns, group, { 0 }
    };
    if (r->grads)
        job.sums = (struct reducer_sums){ begin_sums, end_sums, r };
    if (!p->last)
        return 0;
    if (n == 0) /* nothing to exchange; but the next group may use the place of an exchange in flight */
        return r->reducer ? reducer_wait(r->reducer, 0, err) : 0;
    if (r->reducer) {
        reducer_start(r->reducer, &job);
        return reducer_wait(r->reducer, 1, err);
    }
    int rc = exchange(r, &job, err);
    if (!rc && job.clean)
        clean(r, r->comm->contribution, job.slices, n);
    return rc;
}

/* Runs a packet. Its gradients are in comm->contribution (or already exchanged by group); its loss is the sum over
 * micro-batches in order. */
static int run_packet(struct rank *r, const struct step_plan *plan, struct packet packet, uint32_t in_wave,
                      bool first_of_step, double *loss, struct fsdpck_error *err)
{
    struct hook_context hook_context = { r, gather_hook(r->gather), in_wave, first_of_step, false };
    const struct compute_hook hook = { before_group, after_group, r->job->layout.grads_by_group ? reduce_group : NULL,
                                       &hook_context };
    int rc = 0;
    if (packet.first < packet.end)
        r->compute->device->memory->zero(r->compute->stream, r->comm->contribution,
                                         (size_t)r->job->layout.grad_nelem * sizeof(float));
    *loss = 0;
    for (size_t turn = 0; turn < packet.nturns && !rc; turn++) {
        double part = 0;
        hook_context.last = turn + 1 == packet.nturns;
        gather_begin(r->gather, first_of_step && turn == 0, true);
        if (packet.first + turn < packet.end) {
            rc = rank_fill(r, r->job->data, plan, &plan->micros[packet.first + turn], err);
            if (!rc)
                rc = compute_micro(r->compute, &hook, &part, err);
            *loss += part;
        } else {
            rc = compute_skip(r->compute, &hook, err);
        }
    }
    if (!rc && r->reducer)
        rc = reducer_wait(r->reducer, 0, err);
    return rc;
}

int rank_fold(struct rank *r, double mine, uint32_t nparts, double *sum, struct fsdpck_error *err)
{
    return rank_fold_part(r, r->comm->rank, mine, nparts, sum, err);
}

int rank_fold_part(struct rank *r, uint32_t number, double mine, uint32_t nparts, double *sum, struct fsdpck_error *err)
{
    uint64_t bits[COMM_MAX_SUM] = { 0 };
    memcpy(&bits[number], &mine, sizeof mine);
    int rc = r->comm->ops->sum_u64(r->comm, bits, r->comm->nranks, err);
    for (uint32_t q = 0; q < nparts && !rc; q++) {
        double part;
        memcpy(&part, &bits[q], sizeof part);
        *sum += part;
    }
    return rc;
}

int rank_gradients(struct rank *r, const struct step_plan *plan, double *loss, struct fsdpck_error *err)
{
    size_t per = r->job->config->train.accumulation, npackets = step_npackets(plan, per);
    uint32_t n = r->comm->nranks;
    int rc = 0;
    *loss = 0;
    r->passes.total = r->started ? 0 : (npackets + n - 1) / n * per * r->compute->nuses;
    r->started = true;
    for (size_t wave = 0; wave < npackets && !rc; wave += n) {
        size_t in_wave = npackets - wave < n ? npackets - wave : n;
        double mine = 0;
        comm_at(r->comm, r->step + 1, "forward and backward");
        rc = run_packet(r, plan, step_packet(plan, per, wave, r->comm->rank), (uint32_t)in_wave, wave == 0, &mine, err);
        if (!rc && !r->job->layout.grads_by_group)
            rc = exchange(r,
                          &(struct reducer_job){ .slices = r->slices,
                                                 .nslices = r->nslices,
                                                 .ncontributions = (uint32_t)in_wave,
                                                 .first = wave == 0 },
                          err);
        if (!rc)
            rc = rank_fold(r, mine, (uint32_t)in_wave, loss, err);
    }
    *loss /= (double)plan->nsupervised;
    return rc;
}
