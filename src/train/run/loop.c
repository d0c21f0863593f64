/* SPDX-License-Identifier: Apache-2.0 */
/* The training loop. All ranks execute it in lockstep; rank 0 also writes the small files. */
#include "run/loop.h"

#include <fsdpck/io.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "rank/device.h"
#include "rank/files.h"
#include "rank/gather.h"
#include "rank/memory.h"
#include "rank/schedule.h"
#include "run/agree.h"
#include "run/control.h"
#include "run/evaluate.h"
#include "run/optimize.h"
#include "run/plan.h"
#include "run/profile.h"
#include "run/resume.h"
#include "run/samples.h"
#include "run/step.h"
#include "state/adapter.h"
#include "state/load.h"
#include "state/saver.h"
#include "state/whole.h"

enum { PSS_EVERY = 100, DIVERGED = 10 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void note(const struct rank *r, const char *line)
{
    if (r->comm->rank == 0 && r->job->opt->note)
        r->job->opt->note(r->job->opt->ctx, line);
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
        note(r, line);
        return 0;
    }
    rc = fsdpck_error_set(err, FSDPCK_ERR_FORMAT, NULL, "%s", line);
    fsdpck_error_hint(err, "try a smaller train.learning_rate, a longer warm-up (train.warmup_steps, "
                           "train.warmup_ratio), a smaller train.max_grad_norm, or train.on_nonfinite \"skip\"");
    return rc;
}

/* One step: gradients of the whole batch, norm, update. *asked: in, requests to this rank; out, to any rank. */
static int run_step(struct rank *r, struct train_metrics *m, struct asked *asked, struct fsdpck_error *err)
{
    const struct job *job = r->job;
    struct step_plan plan;
    double started = now();
    int rc = data_step(job->data, job->config, r->step, &plan, err);
    m->data_wait_seconds = now() - started;
    const struct rank_times before = rank_times(r);
    m->lr = schedule_lr(job->config, r->step, job->nsteps);
    if (!rc)
        rc = rank_gradients(r, &plan, &m->loss, err);
    asked->stop |= job_status_stopping(
        r->comm->job_status); /* a stop during the computation ends the run after this step, not after the next */
    if (!rc)
        rc = rank_norm(r, &m->grad_norm, asked, err);
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
    const struct rank_times after = rank_times(r);
    const double behind = 1e-9 * (double)(after.behind_ns - before.behind_ns),
                 waited = 1e-9 * (double)(after.waited_ns - before.waited_ns);
    m->comm_seconds = 1e-9 * (double)(after.exposed_ns - before.exposed_ns);
    m->comm_hidden_seconds = behind > waited ? behind - waited : 0;
    m->rss_nbytes = files_rss_nbytes();
    step_plan_free(&plan);
    return rc;
}

/* Expensive: the kernel walks every page of the process. */
static int look_at_memory(struct rank *r, uint64_t *pss_nbytes, struct fsdpck_error *err)
{
    *pss_nbytes = files_pss_nbytes();
    return r->comm->ops->sum_u64(r->comm, pss_nbytes, 1, err);
}

static int log_step(struct rank *r, FILE *metrics, const struct train_metrics *m, struct fsdpck_error *err)
{
    if (r->comm->rank != 0)
        return 0;
    int rc = files_write_metrics(r->job, metrics, m, err);
    if (!rc && r->job->opt->on_step &&
        (m->step % r->job->config->log.every == 0 || m->evaluated || m->step == r->job->nsteps))
        r->job->opt->on_step(r->job->opt->ctx, m);
    return rc;
}

/* If a save fails because of a full or broken disk, warns; the run continues, and the next save tries again. Every rank
 * has the same result. If a rank is lost, prints nothing: the run ends with that error. last: no step follows. */
static void take_save(struct rank *r, struct saver *saver, bool wait, bool last, struct loop_notes *notes)
{
    struct saver_result done;
    char line[2400], text[2048];
    if (!saver_take(saver, wait, &done))
        return;
    notes->save_failed = done.failed;
    if (!done.failed) {
        notes->saved = done.step;
        if (notes->asked == done.step) {
            snprintf(line, sizeof line, "control: the checkpoint of step %llu, which was asked for, is saved",
                     (unsigned long long)done.step);
            note(r, line);
        }
        return;
    }
    snprintf(line, sizeof line, "the checkpoint of step %llu could NOT be saved%s: %s", (unsigned long long)done.step,
             last ? "" : ", training goes on", fsdpck_error_format(&done.why, text, sizeof text));
    if (!done.lost)
        note(r, line);
}

/* Starts a save, between this step's update and the next one: copies the state, and writes it in the background.
 * *stall: seconds for which training stood still. */
static int save(struct rank *r, struct saver *saver, bool last, struct loop_notes *notes, double *stall,
                struct fsdpck_error *err)
{
    double started = now();
    char line[160];
    if (saver_is_busy(saver)) {
        snprintf(line, sizeof line,
                 "the checkpoint before that of step %llu is still being written: training waits for it",
                 (unsigned long long)r->step);
        note(r, line);
    }
    comm_at(r->comm, r->step, "saving");
    take_save(r, saver, true, last, notes);
    int rc = saver_start(saver, err);
    *stall = now() - started;
    return rc;
}

bool loop_diverged(const struct loop_notes *notes, uint64_t nsteps)
{
    return notes->ndone >= nsteps && notes->ndone && (notes->trailing >= DIVERGED || 2 * notes->trailing >= nsteps);
}

/* Exports from the last checkpoint: the adapter, or at the end of the run the whole model. */
static int export_result(struct rank *r, const struct loop_notes *notes, struct fsdpck_error *err)
{
    const struct train_config *config = r->job->config;
    char path[FILES_PATH], out[FILES_PATH + 16];
    if (r->comm->rank != 0 || notes->saved != r->step || loop_diverged(notes, r->job->nsteps))
        return 0;
    int rc = files_check_folder(r->job, err);
    if (!rc)
        rc = files_checkpoint_path(config, r->step, path, err);
    snprintf(out, sizeof out, "%s/adapter", config->output_dir);
    if (!rc && config->lora.enabled && config->checkpoint.export_adapter)
        rc = adapter_export(r->job, r->step, path, out, err);
    if (!rc && r->step >= r->job->nsteps)
        rc = whole_export(r->job, path, err);
    return rc;
}

static bool save_is_due(const struct rank *r, bool stopping)
{
    uint64_t every = r->job->config->checkpoint.save_steps;
    return stopping || r->step == r->job->nsteps || (every && r->step % every == 0);
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
        note(r, line);
    return rc;
}

static int train(struct rank *r, struct saver *saver, struct profile *profile, FILE *metrics, struct loop_notes *notes,
                 struct fsdpck_error *err)
{
    const uint64_t first = r->step + 1;
    uint64_t pss_nbytes = 0, gathered = 0;
    bool stopping = false;
    int rc = 0;
    struct control control;
    const bool listens = r->comm->rank == r->job->first;
    if (listens)
        control_open(&control, r);
    while (r->step < r->job->nsteps && !stopping && !rc) {
        struct train_metrics m = { 0 };
        struct asked asked = { .stop = job_status_stopping(r->comm->job_status) };
        if (listens)
            control_look(&control, &asked);
        rc = run_step(r, &m, &asked, err);
        stopping = asked.stop;
        if (!rc && r->comm->rank == 0)
            rc = files_check_folder(r->job, err); /* first, because later writes would recreate the folder */
        if (!rc && (r->step == first || r->step % PSS_EVERY == 0))
            rc = look_at_memory(r, &pss_nbytes, err);
        m.pss_nbytes = pss_nbytes;
        m.gathered_nbytes = gather_times(r->gather).nbytes - gathered;
        if (!rc && evaluation_is_due(r))
            rc = evaluate(r, &m, &stopping, err);
        if (!rc && !stopping && (asked.sample || sampling_is_due(r)))
            rc = rank_sample(r, err);
        gathered = gather_times(r->gather).nbytes;
        const bool last = stopping || r->step == r->job->nsteps;
        take_save(r, saver, false, last, notes);
        if (asked.save)
            notes->asked = r->step;
        if (!rc && (asked.save || save_is_due(r, stopping)))
            rc = save(r, saver, last, notes, &m.save_stall_seconds, err);
        if (!rc && profile)
            profile_step(profile, &m);
        if (!rc)
            rc = log_step(r, metrics, &m, err);
        if (rc)
            break;
        notes->ndone = r->step;
        notes->skipped += r->last_update != r->step;
        notes->trailing = r->step - r->last_update;
    }
    comm_at(r->comm, r->step, "saving");
    take_save(r, saver, true, true, notes); /* even if the run has failed: the last save may have succeeded */
    notes->stopped = stopping && r->step < r->job->nsteps;
    return rc;
}

/* Loads the state from the config, the checkpoint, or both; afterwards all ranks agree on it. */
static int start(struct rank *r, const char *resume, struct loop_notes *notes, struct fsdpck_error *err)
{
    int rc = agree(r, resume, err);
    if (!rc)
        rc = rank_load(r, err);
    if (!rc)
        rc = resume_load(r, resume, &notes->saved, err);
    notes->ndone = r->step;
    notes->trailing = r->step - r->last_update;
    return rc ? rc : r->comm->ops->barrier(r->comm, "start", err);
}

static int tell_start(const struct rank *r, struct fsdpck_error *err)
{
    const struct job *job = r->job;
    struct train_start start = { .config = job->config,
                                 .family = job->model.family,
                                 .nranks = job->nranks,
                                 .nthreads = job->nthreads,
                                 .copies = job_copies(job),
                                 .step = r->step,
                                 .warmup_steps = schedule_warmup(job->config, job->nsteps),
                                 .date = job->date[0] ? job->date : NULL,
                                 .device = r->where->module ? r->where->facts.name : NULL };
    if (r->comm->rank != 0 || !job->opt->on_start)
        return 0;
    data_tell(job->data, &start.data);
    if (job->eval)
        data_tell(job->eval, &start.eval);
    int rc = r->step < job->nsteps
                 ? job_plan(job, r->compute, r->where->device->apart ? &r->memory->sizes : NULL, &start.plan, err)
                 : 0;
    if (!rc && r->step < job->nsteps)
        job->opt->on_start(job->opt->ctx, &start);
    return rc;
}

int loop_run(struct rank *r, const char *resume, struct loop_notes *notes, struct fsdpck_error *err)
{
    FILE *metrics = NULL;
    struct saver *saver = NULL;
    struct profile *profile = NULL;
    int rc = start(r, resume, notes, err);
    if (!rc)
        rc = saver_new(r, &saver, err);
    if (!rc && r->comm->rank == 0)
        rc = files_open_metrics(r->job->config, r->step, &metrics, err);
    if (!rc && r->job->opt->profile && r->comm->rank == 0)
        rc = profile_new(r, &profile, err);
    if (!rc)
        rc = tell_start(r, err);
    if (!rc)
        rc = train(r, saver, profile, metrics, notes, err);
    if (!rc && profile)
        rc = profile_report(profile, err);
    if (!rc)
        rc = export_result(r, notes, err);
    if (metrics && fclose(metrics) && !rc)
        rc = fsdpck_error_set(err, FSDPCK_ERR_IO, r->job->config->log.jsonl, "could not be written");
    if (rc)
        rank_fail(r->job, r->comm->job_status,
                  err); /* first: saver_free() joins a thread that may wait for other ranks */
    saver_free(saver);
    profile_free(profile);
    return rc ? rc : r->comm->ops->barrier(r->comm, "end", err);
}
