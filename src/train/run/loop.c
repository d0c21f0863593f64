/* The training loop. Every rank runs it in step; rank 0 also writes the small files. */
#include "run/loop.h"

#include <fsdpck/io.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "run/agree.h"
#include "run/files.h"
#include "state/adapter.h"

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
    snprintf(line, sizeof line, "step %llu: loss %g, gradient norm %g; the first tensor whose gradient is not finite is '%s'", (unsigned long long)r->step + 1, loss,
             norm, name);
    if (strcmp(r->job->config->train.on_nonfinite, "skip") == 0) {
        strncat(line, "; the step is skipped", sizeof line - strlen(line) - 1);
        note(r, line);
        return 0;
    }
    rc = fsdpck_error_set(err, FSDPCK_ERR_FORMAT, NULL, "%s", line);
    fsdpck_error_hint(err, "try a smaller train.learning_rate, more train.warmup_steps, a smaller train.max_grad_norm, or train.on_nonfinite \"skip\"");
    return rc;
}

/* One step: gradients of the whole batch, norm, update. *stopping: in, whether this rank was asked to; out, whether any was. */
static int run_step(struct rank *r, struct train_metrics *m, bool *stopping, struct fsdpck_error *err)
{
    const struct job *job = r->job;
    struct step_plan plan;
    double started = now();
    int rc = data_step(job->data, job->config, r->step, &plan, err);
    m->data_wait_seconds = now() - started;
    uint64_t waited = r->comm->wait_ns;
    m->lr = schedule_lr(job->config, r->step, job->nsteps);
    if (!rc)
        rc = rank_gradients(r, &plan, &m->loss, err);
    if (!rc)
        rc = rank_norm(r, &m->grad_norm, stopping, err);
    bool finite = isfinite(m->loss) && isfinite(m->grad_norm);
    if (!rc && !finite)
        rc = on_nonfinite(r, m->loss, m->grad_norm, err);
    if (!rc && finite)
        rc = rank_update(r, m->grad_norm, m->lr, err);
    m->step = ++r->step;
    m->ntok = (uint64_t)plan.ntok;
    m->nsupervised = (uint64_t)plan.nsupervised;
    m->step_seconds = now() - started;
    m->tokens_per_second = (double)plan.ntok / m->step_seconds;
    m->comm_seconds = 1e-9 * (double)(r->comm->wait_ns - waited);
    m->rss_nbytes = files_rss_nbytes();
    step_plan_free(&plan);
    return rc;
}

static int log_step(struct rank *r, FILE *metrics, const struct train_metrics *m, struct fsdpck_error *err)
{
    if (r->comm->rank != 0)
        return 0;
    int rc = files_write_metrics(metrics, m, err);
    if (!rc && r->job->opt->on_step && (m->step % r->job->config->log.every == 0 || m->step == r->job->nsteps))
        r->job->opt->on_step(r->job->opt->ctx, m);
    return rc;
}

/* A save that fails for want of space or by the disk does not end the run: it is said, and the next save tries again. Every rank gets the same answer of
 * fsdpck_save(), committed or not. */
static int save(struct rank *r, struct loop_notes *notes, struct fsdpck_error *err)
{
    struct fsdpck_error why = { 0 };
    char path[FILES_PATH], line[2400], text[2048];
    int rc = files_checkpoint_path(r->job->config, r->step, path, err);
    if (rc)
        return rc;
    rc = rank_save(r, path, &why);
    uint64_t failed = rc != 0;
    if ((rc = r->comm->ops->sum_u64(r->comm, &failed, 1, err)) != 0)
        return rc;
    notes->save_failed = failed > 0;
    if (failed && why.code) {
        snprintf(line, sizeof line, "the checkpoint of step %llu could NOT be saved, training goes on: %s", (unsigned long long)r->step,
                 fsdpck_error_format(&why, text, sizeof text));
        note(r, line);
    }
    if (!failed) {
        notes->saved = r->step;
        if (r->comm->rank == 0 && r->job->config->checkpoint.keep_last)
            rc = files_prune(r->job->config, r->job->config->checkpoint.keep_last, err);
    }
    return rc;
}

static int export_adapter(struct rank *r, const struct loop_notes *notes, struct fsdpck_error *err)
{
    const struct train_config *config = r->job->config;
    char path[FILES_PATH], out[FILES_PATH + 16];
    if (r->comm->rank != 0 || !config->lora.enabled || !config->checkpoint.export_adapter || notes->saved != r->step)
        return 0;
    int rc = files_checkpoint_path(config, r->step, path, err);
    snprintf(out, sizeof out, "%s/adapter", config->output_dir);
    return rc ? rc : adapter_export(r->job, path, out, err);
}

static bool save_is_due(const struct rank *r, bool stopping)
{
    uint64_t every = r->job->config->checkpoint.save_steps;
    return stopping || r->step == r->job->nsteps || (every && r->step % every == 0);
}

static int train(struct rank *r, FILE *metrics, struct loop_notes *notes, struct fsdpck_error *err)
{
    bool stopping = false;
    int rc = 0;
    while (r->step < r->job->nsteps && !stopping && !rc) {
        struct train_metrics m = { 0 };
        stopping = board_stopping(r->comm->board);
        rc = run_step(r, &m, &stopping, err);
        if (!rc)
            rc = log_step(r, metrics, &m, err);
        notes->ndone = r->step;
        if (!rc && save_is_due(r, stopping))
            rc = save(r, notes, err);
    }
    notes->stopped = stopping && r->step < r->job->nsteps;
    return rc;
}

int loop_run(struct rank *r, const char *resume, struct loop_notes *notes, struct fsdpck_error *err)
{
    FILE *metrics = NULL;
    int rc = agree(r, resume, err);
    if (!rc)
        rc = rank_load(r, err);
    if (!rc && resume)
        rc = rank_resume(r, resume, err);
    if (!rc)
        rc = r->comm->ops->barrier(r->comm, "start", err);
    notes->ndone = notes->saved = r->step;
    if (!rc && r->comm->rank == 0)
        rc = files_open_metrics(r->job->config, r->step, &metrics, err);
    if (!rc)
        rc = train(r, metrics, notes, err);
    if (!rc)
        rc = export_adapter(r, notes, err);
    if (metrics && fclose(metrics) && !rc)
        rc = fsdpck_error_set(err, FSDPCK_ERR_IO, r->job->config->log.jsonl, "could not be written");
    return rc ? rc : r->comm->ops->barrier(r->comm, "end", err);
}
