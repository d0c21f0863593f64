/* SPDX-License-Identifier: Apache-2.0 */
/* train_run: checks everything that can be checked in advance, chooses the checkpoint to resume from, starts the
 * supervisor of the ranks, and reports the result. */
#include "rank/files.h"
#include "run/automatic.h"
#include "run/date.h"
#include "run/elastic.h"
#include "run/open.h"
#include "run/refusal.h"
#include "run/resume.h"
#include "run/supervise.h"
#include "run/tenants.h"

/* One process per run locks output_dir. Another run that would write to it is told which process holds the lock. */
static int lock(struct job *job, struct fsdpck_error *err)
{
    return job->first ? 0 : fsdpck_folder_lock(job->config->output_dir, "run", &job->fs, &job->lock, err);
}

static int start_ranks(struct job *job, const char *resume, struct train_result *done, struct fsdpck_error *err)
{
    struct supervise_end ignored;
    return job->opt->elastic_nranks ? elastic_run(job, resume, done, err)
                                    : supervise(job, resume, NULL, done, &ignored, err);
}

static int train(struct job *job, struct train_result *done, bool *joined, struct fsdpck_error *err)
{
    char path[FILES_PATH];
    bool found = false;
    files_clean_up(job);
    int rc = resume_choose(job, path, &found, err);
    if (!rc)
        rc = date_keep(job, err);
    if (rc)
        return rc;
    *joined = true;
    rc = start_ranks(job, found ? path : NULL, done, err);
    struct fsdpck_error ignored = { 0 }; /* keep the run's own error */
    int rc2 = files_check_folder(job, rc ? &ignored : err);
    if (!rc2 && !job->first)
        rc2 = files_write_summary(job, done, !rc, rc ? &ignored : err);
    return rc ? rc : rc2;
}

/* *joined: the ranks were started and can communicate. */
static int run(struct job *job, struct train_result *done, bool *joined, struct fsdpck_error *err)
{
    int rc = files_check_own(job->config, err);
    if (!rc)
        rc = files_make_folders(job->config, err);
    if (!rc)
        rc = lock(job, err);
    if (!rc)
        rc = train(job, done, joined, err);
    fsdpck_folder_unlock(job->lock);
    return rc;
}

/* A config without tenants. */
static int run_one(const struct train_config *config, const struct train_options *opt, struct train_result *done,
                   bool *joined, struct fsdpck_error *err)
{
    struct train_config given = *config, settled;
    struct job job;
    automatic_recall(&given, opt);
    int rc = job_open(&given, opt, &job, err);
    if (rc)
        return rc;
    if (!opt->launched_nranks)
        rc = automatic_choose(&job, &settled, err);
    if (!rc)
        rc = run(&job, done, joined, err);
    job_close(&job);
    return rc;
}

int train_run(const struct train_config *config, const struct train_options *opt, struct train_result *result,
              struct fsdpck_error *err)
{
    struct train_result done = { 0 };
    struct fsdpck_error own = { 0 };
    bool joined = false;
    int rc =
        config->tenants ? tenants_run(config, opt, &done, &joined, &own) : run_one(config, opt, &done, &joined, &own);
    if (rc && !joined)
        done.reported_elsewhere = !refusal_report(opt, &own);
    if (result)
        *result = done;
    if (rc && err && !err->code)
        *err = own;
    return rc;
}
