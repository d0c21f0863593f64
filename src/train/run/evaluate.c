/* SPDX-License-Identifier: Apache-2.0 */
/* Computes the loss on data.eval: forward only, without dropout. Distributes micro-batches over ranks in waves, and
 * adds losses in the order of the rows, so that the sum is the same for any number of ranks. Does not affect
 * training. */
#include "run/evaluate.h"

#include "rank/gather.h"
#include "run/step.h"

/* Evaluates micro-batch wave + rank if it exists; otherwise only takes part in the gathers. */
static int run_wave(struct rank *r, const struct step_plan *plan, size_t wave, double *sum, struct fsdpck_error *err)
{
    const struct compute_hook hook = gather_hook(r->gather);
    size_t mine = wave + r->comm->rank, left = plan->nmicros - wave;
    double part = 0;
    int rc;
    gather_begin(r->gather, wave == 0, false);
    if (mine < plan->nmicros) {
        rc = rank_fill(r, r->job->eval, plan, &plan->micros[mine], err);
        if (!rc)
            rc = compute_loss(r->compute, &hook, &part, err);
    } else {
        rc = compute_loss_skip(r->compute, &hook, err);
    }
    return rc ? rc : rank_fold(r, part, (uint32_t)(left < r->comm->nranks ? left : r->comm->nranks), sum, err);
}

/* *stopping: true if any rank was asked to stop. */
static int agree_on_stop(struct rank *r, bool *stopping, struct fsdpck_error *err)
{
    uint64_t requested = *stopping || job_status_stopping(r->comm->job_status);
    int rc = r->comm->ops->sum_u64(r->comm, &requested, 1, err);
    *stopping = requested > 0;
    return rc;
}

int rank_evaluate(struct rank *r, struct train_metrics *m, bool *stopping, struct fsdpck_error *err)
{
    const uint64_t started = comm_now_ns();
    struct step_plan plan;
    double sum = 0;
    int rc = data_all_rows(r->job->eval, &plan, err);
    comm_at(r->comm, r->step, "evaluation");
    if (!rc)
        rc = agree_on_stop(r, stopping, err);
    for (size_t wave = 0; wave < plan.nmicros && !rc && !*stopping; wave += r->comm->nranks) {
        rc = run_wave(r, &plan, wave, &sum, err);
        if (!rc && wave + r->comm->nranks < plan.nmicros)
            rc = agree_on_stop(r, stopping, err);
    }
    m->evaluated = !rc && !*stopping;
    m->eval_nsupervised = (uint64_t)plan.nsupervised;
    m->eval_loss = sum / (double)plan.nsupervised;
    m->eval_seconds = 1e-9 * (double)(comm_now_ns() - started);
    step_plan_free(&plan);
    return rc;
}
