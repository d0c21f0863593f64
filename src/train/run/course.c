/* SPDX-License-Identifier: Apache-2.0 */
/* What follows the gradients of a step: norm, update, evaluation, samples, saves, and the small files of rank 0. */
#include "run/course.h"

#include <fsdpck/io.h>
#include <math.h>
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
#include "run/evaluate.h"
#include "run/plan.h"
#include "run/profile.h"
#include "run/samples.h"
#include "run/save.h"
#include "run/tracker.h"
#include "state/adapter.h"
#include "state/export_model.h"

enum { PSS_EVERY = 100 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double course_seconds(const struct course *c)
{
    return now() - c->step.started;
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

void course_begin_step(struct course *c, struct train_metrics *m)
{
    const struct rank *r = c->rank;
    c->step = (struct course_step){ now(), rank_times(r), offloaded(r) };
    m->lr = schedule_lr(r->job->config, r->step, r->job->nsteps);
}

/* The norm, and the update if it is finite. */
static int update(struct course *c, struct train_metrics *m, struct requests *requests, struct fsdpck_error *err)
{
    struct rank *r = c->rank;
    int rc = rank_norm(r, &m->grad_norm, requests, &c->times.facts, err);
    const bool finite = isfinite(m->loss) && isfinite(m->grad_norm);
    c->failed = !rc && !finite && r->job->config->train.on_nonfinite != TRAIN_NONFINITE_SKIP;
    if (!rc && !finite)
        rc = on_nonfinite(r, m->loss, m->grad_norm, err);
    if (!rc && finite)
        rc = rank_update(r, m->grad_norm, m->lr, err);
    if (!rc)
        r->step++;
    if (!rc && finite)
        r->last_update = r->step;
    return rc;
}

int course_update(struct course *c, int rc, const struct step_plan *plan, struct train_metrics *m,
                  struct requests *requests, struct fsdpck_error *err)
{
    struct rank *r = c->rank;
    struct step_times *times = &c->times;
    requests->stop |= job_status_stopping(
        r->comm->job_status); /* a stop during the computation ends the run after this step, not after the next */
    times->facts.from_hosts_nbytes = comm_from_hosts_nbytes(r->host) - times->before_nbytes;
    times->facts.busy_seconds[r->comm->rank] =
        course_seconds(c) - 1e-9 * (double)(rank_times(r).exposed_ns - c->step.before.exposed_ns);
    if (!rc)
        rc = update(c, m, requests, err);
    m->tenant = r->job->name;
    m->step = r->step;
    m->nsteps = r->job->nsteps;
    m->ntok = (uint64_t)plan->ntok;
    m->nsupervised = (uint64_t)plan->nsupervised;
    m->step_seconds = course_seconds(c);
    m->tokens_per_second = (double)plan->ntok / m->step_seconds;
    count_times(r, &c->step.before, m);
    pace_tokens(plan, r->job->config->train.accumulation, r->comm->nranks, times->ntok);
    m->busy_seconds = times->facts.busy_seconds;
    m->from_hosts_nbytes = rc ? 0 : times->facts.from_hosts_nbytes - times->from_hosts_nbytes;
    times->from_hosts_nbytes = times->facts.from_hosts_nbytes;
    m->nranks = r->comm->nranks;
    m->slowest_rank = find_slowest(m->busy_seconds, m->nranks);
    measure_offload(r, &c->step.offloaded, m);
    m->rss_nbytes = files_rss_nbytes();
    return rc;
}

/* Expensive: the kernel walks every page of the process. */
static int measure_memory(struct rank *r, uint64_t *pss_nbytes, struct fsdpck_error *err)
{
    *pss_nbytes = files_pss_nbytes();
    return r->comm->ops->sum_u64(r->comm, pss_nbytes, 1, err);
}

static int log_step(const struct course *c, const struct train_metrics *m, struct fsdpck_error *err)
{
    const struct rank *r = c->rank;
    json_t *line;
    if (r->comm->rank != 0)
        return 0;
    int rc = files_write_metrics(r->job, c->metrics, m, &line, err);
    if (!rc)
        tracker_line(r->tracker, line);
    json_decref(line);
    if (!rc && r->job->opt->on_step &&
        (m->step % r->job->config->log.every == 0 || m->evaluated || m->step == r->job->nsteps))
        r->job->opt->on_step(r->job->opt->ctx, m);
    return rc;
}

/* Exports from the last checkpoint: the adapter, or at the end of the run the whole model. */
int course_export(const struct course *c, struct fsdpck_error *err)
{
    struct rank *r = c->rank;
    const struct loop_results *results = c->results;
    const struct train_config *config = r->job->config;
    char path[FILES_PATH], out[FILES_PATH + 16];
    if (r->comm->rank != 0 || results->comes_back || results->saved != r->step ||
        results_diverged(results, r->job->nsteps))
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
static int evaluate(struct course *c, struct train_metrics *m, struct fsdpck_error *err)
{
    struct rank *r = c->rank;
    char line[120];
    int rc = c->stopping ? 0 : rank_evaluate(r, m, &c->stopping, err);
    snprintf(line, sizeof line, "the evaluation of step %llu is left out: the run stops", (unsigned long long)r->step);
    if (!rc && !m->evaluated)
        rank_note(r, line);
    return rc;
}

static void note_slow(struct course *c)
{
    char line[240];
    if (pace_add(&c->pace, c->rank->comm->nranks, c->times.facts.busy_seconds, c->times.ntok, line))
        rank_note(c->rank, line);
}

int course_agree(struct course *c, int rc, struct fsdpck_error *err)
{
    struct fsdpck_error mine = { 0 }, lost = { 0 };
    if (!c->apart || rc == FSDPCK_ERR_PEER)
        return rc;
    if (rc)
        mine = *err;
    if (comm_first_error(c->rank->comm, &mine, &lost)) {
        *err = lost;
        return lost.code;
    }
    c->failed = mine.code != 0;
    if (mine.code)
        *err = mine;
    return mine.code;
}

/* Evaluates and samples before the step is saved. */
static int look(struct course *c, struct train_metrics *m, const struct requests *requests, struct fsdpck_error *err)
{
    struct rank *r = c->rank;
    int rc = evaluation_is_due(r) ? evaluate(c, m, err) : 0;
    if (!rc && !c->stopping && (requests->sample || sampling_is_due(r)))
        rc = course_agree(c, rank_sample(r, err), err);
    c->gathered = gather_times(r->gather).nbytes;
    return rc;
}

int course_draw_first(struct course *c, struct fsdpck_error *err)
{
    struct rank *r = c->rank;
    if (r->step || !r->job->config->sample.every || !samples_of_pictures(r->job->samples))
        return 0;
    int rc = rank_sample(r, err);
    c->gathered = gather_times(r->gather).nbytes;
    return rc;
}

/* The savers of several trainings talk on one lane, one at a time, in the same order on every rank. */
static void take_lane(struct course *c)
{
    struct course *last = c->writing ? *c->writing : NULL;
    if (last && last != c)
        save_collect(last->rank, last->saver, true, false, last->results);
    if (c->writing)
        *c->writing = c;
}

/* Lets the saver copy what is due. */
static int copy(struct course *c, bool saves, bool snapshot, bool last, struct train_metrics *m,
                struct fsdpck_error *err)
{
    struct rank *r = c->rank;
    int rc = saves ? save_copy(r, c->saver, last, c->results, &m->save_stall_seconds, err) : 0;
    return !rc && snapshot ? save_snapshot(r, &m->save_stall_seconds, err) : rc;
}

static void write_copy(struct course *c)
{
    take_lane(c);
    saver_write(c->saver);
}

int course_save(struct course *c, struct fsdpck_error *err)
{
    double ignored;
    save_collect(c->rank, c->saver, true, true, c->results);
    if (c->results->saved == c->rank->step || !c->rank->step)
        return 0;
    int rc = save_copy(c->rank, c->saver, true, c->results, &ignored, err);
    if (!rc)
        write_copy(c);
    return rc;
}

int course_end_step(struct course *c, struct train_metrics *m, const struct requests *requests,
                    struct fsdpck_error *err)
{
    struct rank *r = c->rank;
    struct loop_results *results = c->results;
    c->stopping |= requests->stop;
    /* first, because later writes would recreate the folder */
    int rc = course_agree(c, r->comm->rank == 0 ? files_check_folder(r->job, err) : 0, err);
    c->gone = rc && c->failed;
    if (!rc && (r->step == c->first || r->step % PSS_EVERY == 0))
        rc = measure_memory(r, &c->pss_nbytes, err);
    if (!rc && r->step > c->first) /* the first step also measures and allocates */
        note_slow(c);
    m->pss_nbytes = c->pss_nbytes;
    m->gathered_nbytes = gather_times(r->gather).nbytes - c->gathered;
    if (!rc)
        rc = look(c, m, requests, err);
    const bool last = c->stopping || r->step == r->job->nsteps;
    save_collect(r, c->saver, false, last, results);
    if (requests->save)
        results->requested_save = r->step;
    const bool saves = requests->save || save_is_due(r, c->stopping),
               snapshot = save_snapshot_is_due(r, c->stopping || last);
    if (!rc)
        rc = copy(c, saves, snapshot, last, m, err);
    if (!rc && c->profile)
        profile_step(c->profile, m);
    if (!rc)
        rc = course_agree(c, log_step(c, m, err), err);
    if (rc)
        return rc;
    if (saves)
        write_copy(c);
    results->ndone = r->step;
    results->skipped += r->last_update != r->step;
    results->trailing = r->step - r->last_update;
    if (snapshot)
        rc = save_snapshot_complete(r, err);
    if (!rc && save_is_due(r, c->stopping))
        c->stopping |= save_and_come_back(r, c->saver, last, results);
    return rc;
}

void course_end(struct course *c)
{
    struct rank *r = c->rank;
    comm_at(r->comm, r->step, "saving");
    save_collect(r, c->saver, true, true, c->results); /* even after a failure: the last save may have succeeded */
    c->results->stopped = c->stopping && r->step < r->job->nsteps;
}

/* Ranks that go on after a loss count the steps that were skipped before it. */
void course_count(const struct rank *r, struct loop_results *results)
{
    const uint64_t skipped = r->step - r->updates, known = r->job->recovery.skipped_before;
    results->skipped_before = known ? known : skipped + 1;
    results->skipped = skipped + 1 - results->skipped_before;
    results->ndone = r->step;
    results->trailing = r->step - r->last_update;
}

int course_report_start(const struct rank *r, struct fsdpck_error *err)
{
    const struct job *job = r->job;
    struct train_start start = { .tenant = job->name,
                                 .config = job->config,
                                 .family = job->model.family ? job->model.family->name : "flux2",
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

void course_poll(struct course *c, struct requests *requests)
{
    if (c->listens)
        control_poll(&c->control, requests);
}

int course_open(struct rank *r, struct loop_results *results, struct course *c, uint64_t *nagain,
                struct fsdpck_error *err)
{
    *c = (struct course){ .rank = r,
                          .results = results,
                          .first = r->step + 1,
                          .listens = r->comm->rank == r->job->first,
                          .times = { .before_nbytes = comm_from_hosts_nbytes(r->host) } };
    if (c->listens)
        control_open(&c->control, r);
    int rc = saver_new(r, &c->saver, err);
    if (!rc && r->comm->rank == 0)
        rc = files_open_metrics(r->job->config, r->step, &c->metrics, nagain, err);
    if (!rc && r->comm->rank == 0)
        rc = tracker_open(r, &r->tracker, err);
    if (!rc && r->job->opt->profile && r->comm->rank == 0)
        rc = profile_new(r, &c->profile, err);
    return rc;
}

void course_close_files(struct course *c, int *rc, struct fsdpck_error *err)
{
    if (c->metrics && fclose(c->metrics) && !*rc)
        *rc = fsdpck_error_set(err, FSDPCK_ERR_IO, c->rank->job->config->log.jsonl, "could not be written");
    c->metrics = NULL;
    tracker_close(c->rank->tracker, *rc != 0);
    c->rank->tracker = NULL;
}

void course_free(struct course *c)
{
    saver_free(c->saver);
    profile_free(c->profile);
}
