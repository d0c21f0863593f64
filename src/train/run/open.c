/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a job from a config: model, data and layout, checked against the files. */
#include "run/open.h"

#include <jansson.h>
#include <string.h>

#include "rank/device.h"
#include "run/date.h"
#include "run/look.h"
#include "run/samples.h"
#include "state/adapter.h"
#include "state/sources.h"

static void note_of_data(void *ctx, const char *line)
{
    const struct train_options *opt = ctx;
    opt->note(opt->ctx, line);
}

static void tokenized(void *ctx, uint64_t done_nbytes, uint64_t total_nbytes)
{
    const struct train_options *opt = ctx;
    opt->phase(opt->ctx, TRAIN_TOKENIZING, done_nbytes, total_nbytes);
}

/* Options for reading data: uses the threads of all ranks of this process, which have not started yet, and obeys a
 * stop. */
static struct fsdpck_options for_data(const struct job *job)
{
    struct fsdpck_options opt = job->fs;
    opt.ctx = (void *)job->opt;
    opt.note = job->opt->note ? note_of_data : NULL;
    opt.progress = job->opt->phase ? tokenized : NULL;
    opt.nthreads = job->nthreads * (job->opt->launched_nranks ? 1 : job->nranks);
    opt.stop = job->opt->stop;
    return opt;
}

/* Reads, truncates and packs data.eval as data.train. */
static int open_eval(struct job *job, const struct train_config *dated, const struct fsdpck_options *opt,
                     struct fsdpck_error *err)
{
    struct train_config config = *dated;
    if (!config.data.eval)
        return 0;
    config.data.train = config.data.eval;
    config.data.files = config.data.eval_files;
    config.data.nfiles = config.data.neval_files;
    config.data.plan = NULL;
    return data_open(&config, job->model.nvocab, opt, &job->eval, err);
}

/* PEFT warns about this too. */
static void note_untied(const struct job *job)
{
    if (job->model.tied && !layout_is_tied(&job->layout) && job->fs.note)
        job->fs.note(job->fs.ctx, "the model ties lm_head to embed_tokens; lora.modules_to_save trains a copy of its "
                                  "own, as PEFT does: with this adapter the two are not tied");
}

int job_open(const struct train_config *config, const struct train_options *opt, struct job *out,
             struct fsdpck_error *err)
{
    uint32_t nranks = opt->launched_nranks ? opt->launched_nranks : opt->nranks;
    struct job job = { .config = config, .opt = opt, .first = opt->launched_rank, .nranks = nranks ? nranks : 1 };
    unsigned share = fsdpck_processors() / job.nranks;
    job.nthreads = opt->nthreads ? opt->nthreads : share ? share : 1;
    job.fs = (struct fsdpck_options){ .note = opt->note, .ctx = opt->ctx };
    const struct fsdpck_options data_opt = for_data(&job);
    struct train_config dated = *config;
    *out = (struct job){ 0 };
    if (device_check(opt, err))
        return err->code;
    if (job.nranks > COMM_MAX_SUM)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "%u ranks: at most %d are supported", job.nranks,
                                COMM_MAX_SUM);
    int rc = model_read(config->model, &job.fs, &job.model, err);
    if (!rc)
        rc = layout_make(&job.model, config, job.nranks, &job.layout, err);
    if (!rc && config->lora.init_adapter)
        rc = adapter_check_start(config, err);
    if (!rc)
        rc = job_check_sources(&job, err);
    if (!rc)
        rc = date_choose(config, opt, job.date, err);
    dated.data.date = job.date;
    if (!rc)
        rc = data_open(&dated, job.model.nvocab, &data_opt, &job.data, err);
    if (!rc)
        rc = open_eval(&job, &dated, &data_opt, err);
    if (!rc)
        rc = data_nsteps(job.data, config, &job.nsteps, err);
    if (!rc)
        rc = samples_open(&dated, job.model.nvocab, &job.fs, &job.samples, err);
    samples_lengths(job.samples, &job.sample_prompt, &job.sample_most);
    if (rc)
        job_close(&job);
    else
        note_untied(&job);
    if (!rc && job.fs.note)
        train_config_idle(config, &(struct train_job_size){ job.nranks, job_copies(&job) }, job.fs.note, job.fs.ctx);
    if (!rc && !data_is_dated(job.data) && !(job.eval && data_is_dated(job.eval)) && !samples_are_dated(job.samples))
        job.date[0] = '\0';
    if (!rc)
        job_look(&job);
    *out = job;
    return rc;
}

void job_close(struct job *job)
{
    samples_free(job->samples);
    job_free(job);
}
