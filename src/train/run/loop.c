/* SPDX-License-Identifier: Apache-2.0 */
/* The training loop. All ranks execute it in lockstep; rank 0 also writes the small files. */
#include "run/loop.h"

#include <fsdpck/io.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "model/family.h"
#include "rank/device.h"
#include "rank/files.h"
#include "rank/gather.h"
#include "rank/grad_file.h"
#include "rank/memory.h"
#include "rank/offload.h"
#include "rank/schedule.h"
#include "run/agree.h"
#include "run/control.h"
#include "run/evaluate.h"
#include "run/optimize.h"
#include "run/pace.h"
#include "run/plan.h"
#include "run/profile.h"
#include "run/resume.h"
#include "run/save.h"
#include "run/samples.h"
#include "run/step.h"
#include "run/tracker.h"
#include "state/adapter.h"
#include "state/load.h"
#include "state/snapshots.h"
#include "state/export_model.h"

enum { PSS_EVERY = 100, DIVERGED = 10 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int on_nonfinite(struct rank *r, double loss, double norm, struct fsdpck_error *err)
{
    const char *name;
    char line[600];
    int rc = rank_find_nonfinite(r, &name, err);
    if (rc)
        return rc;
    snprintf(line, sizeof line,
             "step %llu: loss %g, gradient norm %g; the first tensor whose gradient is not finite is '%s'",
             (unsigned long long)r->step + 1, loss, norm, name);
    if (r->job->config->train.on_nonfinite == TRAIN_NONFINITE_SKIP) {
        strncat(line, "; the step is skipped", sizeof line - strlen(line) - 1);
        rank_note(r, line);
        return 0;
    }
    rc = fsdpck_error_set(err, FSDPCK_ERR_FORMAT, NULL, "%s", line);
    fsdpck_error_hint(err, "try a smaller train.learning_rate, a longer warm-up (train.warmup_steps, "
                           "train.warmup_ratio), a smaller train.max_grad_norm, or train.on_nonfinite \"skip\"");
    return rc;
}

/* What each rank computed in a step, and for how long; and what came from other hosts. */
struct step_times {
    struct step_facts facts;
    int64_t ntok[COMM_MAX_SUM];
    uint64_t before_nbytes;     /* received by this rank before the first step */
    uint64_t from_hosts_nbytes; /* received by all ranks since then, up to the last norm */
};

static uint32_t find_slowest(const double *busy_seconds, uint32_t nranks)
{
    uint32_t slowest = 0;
    for (uint32_t q = 1; q < nranks; q++)
        slowest = busy_seconds[q] > busy_seconds[slowest] ? q : slowest;
    return slowest;
}

/* The times of a step on this rank, from the totals before and after it. */
static void count_times(const struct rank *r, const struct rank_times *before, struct train_metrics *m)
{
    const struct rank_times after = rank_times(r);
    const double background = 1e-9 * (double)(after.background_ns - before->background_ns),
                 waited = 1e-9 * (double)(after.waited_ns - before->waited_ns);
    m->comm_seconds = 1e-9 * (double)(after.exposed_ns - before->exposed_ns);
    m->comm_gather_seconds = 1e-9 * (double)(after.gather_ns - before->gather_ns);
    m->comm_exchange_seconds = 1e-9 * (double)(after.exchange_ns - before->exchange_ns);
    m->comm_hidden_seconds = background > waited ? background - waited : 0;
}

static struct offload_times offloaded(const struct rank *r)
{
    struct offload_times sum = r->offload ? offload_times(r->offload) : (struct offload_times){ 0 };
    if (r->grads) {
        const struct offload_times *grads = grad_file_times(r->grads);
        sum.busy_ns += grads->busy_ns;
        sum.waited_ns += grads->waited_ns;
        sum.nbytes += grads->nbytes;
    }
    return sum;
}

static void measure_offload(const struct rank *r, const struct offload_times *before, struct train_metrics *m)
{
    const struct offload_times after = offloaded(r);
    const double busy = 1e-9 * (double)(after.busy_ns - before->busy_ns),
                 waited = 1e-9 * (double)(after.waited_ns - before->waited_ns);
    m->offloads = r->offload != NULL;
    m->offload_wait_seconds = waited;
    m->offload_hidden_seconds = busy > waited ? busy - waited : 0;
    m->offload_nbytes = after.nbytes - before->nbytes;
}

/* One step: gradients of the whole batch, norm, update. *requests: in, those to this rank; out, to any rank. */
static int run_step(struct rank *r, struct train_metrics *m, struct requests *requests, struct step_times *times,
                    struct fsdpck_error *err)
{
    const struct job *job = r->job;
    struct step_plan plan;
    double started = now();
    int rc = data_step(job->data, job->config, r->step, &plan, err);
    m->data_wait_seconds = now() - started;
    const struct rank_times before = rank_times(r);
    const struct offload_times state_before = offloaded(r);
    m->lr = schedule_lr(job->config, r->step, job->nsteps);
    if (!rc)
        rc = rank_gradients(r, &plan, &m->loss, err);
    requests->stop |= job_status_stopping(
        r->comm->job_status); /* a stop during the computation ends the run after this step, not after the next */
    times->facts.from_hosts_nbytes = comm_from_hosts_nbytes(r->host) - times->before_nbytes;
    times->facts.busy_seconds[r->comm->rank] =
        now() - started - 1e-9 * (double)(rank_times(r).exposed_ns - before.exposed_ns);
    if (!rc)
        rc = rank_norm(r, &m->grad_norm, requests, &times->facts, err);
    bool finite = isfinite(m->loss) && isfinite(m->grad_norm);
    if (!rc && !finite)
        rc = on_nonfinite(r, m->loss, m->grad_norm, err);
    if (!rc && finite)
        rc = rank_update(r, m->grad_norm, m->lr, err);
    m->step = ++r->step;
    if (!rc && finite)
        r->last_update = r->step;
    m->ntok = (uint64_t)plan.ntok;
    m->nsupervised = (uint64_t)plan.nsupervised;
    m->step_seconds = now() - started;
    m->tokens_per_second = (double)plan.ntok / m->step_seconds;
    count_times(r, &before, m);
    pace_tokens(&plan, job->config->train.accumulation, r->comm->nranks, times->ntok);
    m->busy_seconds = times->facts.busy_seconds;
    m->from_hosts_nbytes = rc ? 0 : times->facts.from_hosts_nbytes - times->from_hosts_nbytes;
    times->from_hosts_nbytes = times->facts.from_hosts_nbytes;
    m->nranks = r->comm->nranks;
    m->slowest_rank = find_slowest(m->busy_seconds, m->nranks);
    measure_offload(r, &state_before, m);
    m->rss_nbytes = files_rss_nbytes();
    step_plan_free(&plan);
    return rc;
}

/* Expensive: the kernel walks every page of the process. */
static int measure_memory(struct rank *r, uint64_t *pss_nbytes, struct fsdpck_error *err)
{
    *pss_nbytes = files_pss_nbytes();
    return r->comm->ops->sum_u64(r->comm, pss_nbytes, 1, err);
}

static int log_step(struct rank *r, FILE *metrics, const struct train_metrics *m, struct fsdpck_error *err)
{
    json_t *line;
    if (r->comm->rank != 0)
        return 0;
    int rc = files_write_metrics(r->job, metrics, m, &line, err);
    if (!rc)
        tracker_line(r->tracker, line);
    json_decref(line);
    if (!rc && r->job->opt->on_step &&
        (m->step % r->job->config->log.every == 0 || m->evaluated || m->step == r->job->nsteps))
        r->job->opt->on_step(r->job->opt->ctx, m);
    return rc;
}

bool loop_diverged(const struct loop_results *results, uint64_t nsteps)
{
    return results->ndone >= nsteps && results->ndone &&
           (results->trailing >= DIVERGED || 2 * results->trailing >= nsteps);
}

/* Exports from the last checkpoint: the adapter, or at the end of the run the whole model. */
static int export_result(struct rank *r, const struct loop_results *results, struct fsdpck_error *err)
{
    const struct train_config *config = r->job->config;
    char path[FILES_PATH], out[FILES_PATH + 16];
    if (r->comm->rank != 0 || results->comes_back || results->saved != r->step ||
        loop_diverged(results, r->job->nsteps))
        return 0;
    int rc = files_check_folder(r->job, err);
    if (!rc)
        rc = files_checkpoint_path(config, r->step, path, err);
    snprintf(out, sizeof out, "%s/adapter", config->output_dir);
    if (!rc && config->lora.enabled && config->checkpoint.export_adapter)
        rc = adapter_export(r->job, r->step, path, out, err);
    if (!rc && r->step >= r->job->nsteps)
        rc = export_model_write(r->job, path, err);
    return rc;
}

static bool evaluation_is_due(const struct rank *r)
{
    uint64_t every = r->job->config->train.eval_steps;
    return r->job->eval && (r->step == r->job->nsteps || (every && r->step % every == 0));
}

static bool sampling_is_due(const struct rank *r)
{
    uint64_t every = r->job->config->sample.every;
    return every && (r->step == r->job->nsteps || r->step % every == 0);
}

/* Evaluates before the step is saved: a run that is killed in between repeats the step and its evaluation. A stop skips
 * the evaluation. */
static int evaluate(struct rank *r, struct train_metrics *m, bool *stopping, struct fsdpck_error *err)
{
    char line[120];
    int rc = *stopping ? 0 : rank_evaluate(r, m, stopping, err);
    snprintf(line, sizeof line, "the evaluation of step %llu is left out: the run stops", (unsigned long long)r->step);
    if (!rc && !m->evaluated)
        rank_note(r, line);
    return rc;
}

/* Says what the loss of ranks, or of the run before this one, has cost. */
static void note_cost(const struct rank *r, uint64_t nagain)
{
    const struct recovery *rec = &r->job->recovery;
    char line[160], again[80];
    snprintf(again, sizeof again, "%llu finished step%s must be done again", (unsigned long long)nagain,
             fsdpck_plural(nagain));
    snprintf(line, sizeof line, "step %llu begins %.2f s after the loss; %s", (unsigned long long)r->step + 1,
             1e-9 * (double)(comm_now_ns() - rec->lost_ns), again);
    if (rec->lost_ns || nagain)
        rank_note(r, rec->lost_ns ? line : again);
}

static void note_slow(const struct rank *r, struct pace *pace, const struct step_times *times)
{
    char line[240];
    if (pace_add(pace, r->comm->nranks, times->facts.busy_seconds, times->ntok, line))
        rank_note(r, line);
}

static int train(struct rank *r, struct saver *saver, struct profile *profile, FILE *metrics,
                 struct loop_results *results, struct fsdpck_error *err)
{
    const uint64_t first = r->step + 1;
    uint64_t pss_nbytes = 0, gathered = 0;
    struct step_times times = { .before_nbytes = comm_from_hosts_nbytes(r->host) };
    struct pace pace = { 0 };
    bool stopping = false;
    int rc = 0;
    struct control control;
    const bool listens = r->comm->rank == r->job->first;
    if (listens)
        control_open(&control, r);
    rc = save_again(r, saver, results, err);
    while (r->step < r->job->nsteps && !stopping && !rc) {
        struct train_metrics m = { 0 };
        struct requests requests = { .stop = job_status_stopping(r->comm->job_status) };
        if (listens)
            control_poll(&control, &requests);
        if (profile)
            profile_begin(profile);
        rc = run_step(r, &m, &requests, &times, err);
        if (!rc && profile)
            profile_end(profile);
        stopping = requests.stop;
        if (!rc && r->comm->rank == 0)
            rc = files_check_folder(r->job, err); /* first, because later writes would recreate the folder */
        if (!rc && (r->step == first || r->step % PSS_EVERY == 0))
            rc = measure_memory(r, &pss_nbytes, err);
        if (!rc && r->step > first) /* the first step also measures and allocates */
            note_slow(r, &pace, &times);
        m.pss_nbytes = pss_nbytes;
        m.gathered_nbytes = gather_times(r->gather).nbytes - gathered;
        if (!rc && evaluation_is_due(r))
            rc = evaluate(r, &m, &stopping, err);
        if (!rc && !stopping && (requests.sample || sampling_is_due(r)))
            rc = rank_sample(r, err);
        gathered = gather_times(r->gather).nbytes;
        const bool last = stopping || r->step == r->job->nsteps;
        save_collect(r, saver, false, last, results);
        if (requests.save)
            results->requested_save = r->step;
        const bool saves = requests.save || save_is_due(r, stopping);
        if (!rc && saves)
            rc = save_copy(r, saver, last, results, &m.save_stall_seconds, err);
        const bool snapshot = save_snapshot_is_due(r, stopping || last);
        if (!rc && snapshot)
            rc = save_snapshot(r, &m.save_stall_seconds, err);
        if (!rc && profile)
            profile_step(profile, &m);
        if (!rc)
            rc = log_step(r, metrics, &m, err);
        if (rc)
            break;
        if (saves)
            saver_write(saver);
        results->ndone = r->step;
        results->skipped += r->last_update != r->step;
        results->trailing = r->step - r->last_update;
        if (snapshot)
            rc = save_snapshot_complete(r, err);
        if (!rc && save_is_due(r, stopping))
            stopping |= save_and_come_back(r, saver, last, results);
    }
    comm_at(r->comm, r->step, "saving");
    save_collect(r, saver, true, true, results); /* even if the run has failed: the last save may have succeeded */
    results->stopped = stopping && r->step < r->job->nsteps;
    return rc;
}

/* Ranks that go on after a loss count the steps that were skipped before it. */
static void count_skipped(const struct rank *r, struct loop_results *results)
{
    const uint64_t skipped = r->step - r->updates, known = r->job->recovery.skipped_before;
    results->skipped_before = known ? known : skipped + 1;
    results->skipped = skipped + 1 - results->skipped_before;
}

/* Loads the state from the config, the checkpoint, or both; afterwards all ranks agree on it. */
static int start(struct rank *r, const char *resume, struct loop_results *results, struct fsdpck_error *err)
{
    int rc = agree(r, resume, err);
    if (!rc)
        rc = rank_load(r, resume || r->job->recovery.step, err);
    if (!rc)
        rc = resume_load(r, resume, &results->saved, err);
    if (!rc)
        count_skipped(r, results);
    results->ndone = r->step;
    results->trailing = r->step - r->last_update;
    return rc ? rc : r->comm->ops->barrier(r->comm, "start", err);
}

static int report_start(const struct rank *r, struct fsdpck_error *err)
{
    const struct job *job = r->job;
    struct train_start start = { .config = job->config,
                                 .family = job->model.family->name,
                                 .nranks = job->nranks,
                                 .nthreads = job->nthreads,
                                 .copies = job_copies(job),
                                 .step = r->step,
                                 .warmup_steps = schedule_warmup(job->config, job->nsteps),
                                 .date = job->date[0] ? job->date : NULL,
                                 .device = r->where->module ? r->where->facts.name : NULL };
    if (r->comm->rank != 0 || !job->opt->on_start)
        return 0;
    data_describe(job->data, &start.data);
    if (job->eval)
        data_describe(job->eval, &start.eval);
    int rc = r->step < job->nsteps ? job_plan(job, r->compute, r->where, &r->memory->sizes, &start.plan, err) : 0;
    if (!rc && r->step < job->nsteps)
        job->opt->on_start(job->opt->ctx, &start);
    return rc;
}

int loop_run(struct rank *r, const char *resume, struct loop_results *results, struct fsdpck_error *err)
{
    FILE *metrics = NULL;
    struct saver *saver = NULL;
    struct profile *profile = NULL;
    uint64_t nagain = 0;
    int rc = start(r, resume, results, err);
    if (!rc)
        rc = saver_new(r, &saver, err);
    if (!rc && r->job->recovery.snapshots && !r->job->recovery.again)
        snapshots_touch(r->job->recovery.snapshots, r);
    if (!rc && r->comm->rank == 0)
        rc = files_open_metrics(r->job->config, r->step, &metrics, &nagain, err);
    if (!rc && r->comm->rank == 0)
        rc = tracker_open(r, &r->tracker, err);
    if (!rc && r->job->opt->profile && r->comm->rank == 0)
        rc = profile_new(r, &profile, err);
    if (!rc)
        rc = report_start(r, err);
    if (!rc)
        note_cost(r, nagain);
    if (!rc)
        rc = train(r, saver, profile, metrics, results, err);
    if (!rc && profile)
        rc = profile_report(profile, err);
    if (!rc)
        rc = export_result(r, results, err);
    if (metrics && fclose(metrics) && !rc)
        rc = fsdpck_error_set(err, FSDPCK_ERR_IO, r->job->config->log.jsonl, "could not be written");
    tracker_close(r->tracker, rc != 0);
    r->tracker = NULL;
    if (rc)
        rank_fail(r->job, r->comm->job_status,
                  err); /* first: saver_free() joins a thread that may wait for other ranks */
    saver_free(saver);
    profile_free(profile);
    return rc ? rc : r->comm->ops->barrier(r->comm, "end", err);
}
