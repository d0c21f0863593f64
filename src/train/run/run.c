/* SPDX-License-Identifier: Apache-2.0 */
/* train_run: checks everything that can be checked in advance, chooses the checkpoint to resume from, starts the
 * supervisor of the ranks, and reports the result. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rank/files.h"
#include "run/date.h"
#include "run/open.h"
#include "run/resume.h"
#include "run/supervise.h"

static void note(const struct train_options *opt, const char *line)
{
    if (opt->note)
        opt->note(opt->ctx, line);
}

/* Rank 0's supervisor removes left-over files. A failure to remove them does not prevent training. */
static void clean(const struct job *job)
{
    struct fsdpck_error err = { 0 };
    size_t n = 0;
    char line[2400], text[2048];
    if (job->first != 0)
        return;
    if (files_clean(job->config, &job->fs, &n, &err)) {
        snprintf(line, sizeof line, "left-over checkpoints could not be removed: %s",
                 fsdpck_error_format(&err, text, sizeof text));
        note(job->opt, line);
    } else if (n) {
        snprintf(line, sizeof line, "removed what interrupted saves had left in output_dir: %zu folders", n);
        note(job->opt, line);
    }
}

/* One process per run locks output_dir. Another run that would write to it is told which process holds the lock. */
static int lock(struct job *job, struct fsdpck_error *err)
{
    return job->first ? 0 : fsdpck_folder_lock(job->config->output_dir, "run", &job->fs, &job->lock, err);
}

static int train(struct job *job, struct train_result *done, bool *joined, struct fsdpck_error *err)
{
    char path[FILES_PATH];
    bool found = false;
    clean(job);
    int rc = resume_choose(job, path, &found, err);
    if (!rc)
        rc = date_keep(job, err);
    if (rc)
        return rc;
    *joined = true;
    rc = supervise(job, found ? path : NULL, done, err);
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

int train_run(const struct train_config *config, const struct train_options *opt, struct train_result *result,
              struct fsdpck_error *err)
{
    struct train_result done = { 0 };
    struct fsdpck_error own = { 0 };
    struct job job;
    bool joined = false;
    int rc = job_open(config, opt, &job, &own);
    if (!rc) {
        rc = run(&job, &done, &joined, &own);
        job_close(&job);
    }
    if (rc && !joined)
        done.said_elsewhere = !supervise_refusal(opt, &own);
    if (result)
        *result = done;
    if (rc && err && !err->code)
        *err = own;
    return rc;
}

bool train_speaks(const struct train_options *opt, const struct fsdpck_error *err)
{
    return supervise_refusal(opt, err);
}
