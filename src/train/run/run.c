/* train_run: checks everything that can be refused, chooses what to go on from, hands over to the supervisor of the ranks, and says what became of the run. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run/files.h"
#include "run/job.h"
#include "run/supervise.h"
#include "state/whole.h"

static void note(const struct train_options *opt, const char *line)
{
    if (opt->note)
        opt->note(opt->ctx, line);
}

/* The newest checkpoint that opens and fits; those that do not open are said and passed over. */
static int find_newest(const struct job *job, char path[FILES_PATH], bool *found, struct fsdpck_error *err)
{
    uint64_t *steps, step;
    size_t count;
    char line[FILES_PATH + 2400], text[2048];
    int rc = files_list_checkpoints(job->config, &steps, &count, err);
    for (size_t i = 0; i < count && !rc && !*found; i++) {
        struct fsdpck_error why = { 0 };
        rc = files_checkpoint_path(job->config, steps[i], path, err);
        int bad = rc ? 0 : job_check_resume(job, path, &step, &why);
        *found = !rc && !bad;
        if (bad == FSDPCK_ERR_USAGE) { /* a good one, of another run */
            *err = why;
            rc = bad;
        } else if (bad) {
            snprintf(line, sizeof line, "checkpoint passed over: %s", fsdpck_error_format(&why, text, sizeof text));
            note(job->opt, line);
        }
    }
    free(steps);
    return rc;
}

/* *found: there is one to go on from, at path. */
static int choose_resume(const struct job *job, char path[FILES_PATH], bool *found, struct fsdpck_error *err)
{
    const char *how = job->opt->resume ? job->opt->resume : "auto";
    char line[FILES_PATH + 64];
    uint64_t step;
    int rc = 0;
    *found = false;
    if (strcmp(how, "never") == 0) {
        uint64_t *steps;
        size_t count;
        rc = files_list_checkpoints(job->config, &steps, &count, err);
        free(steps);
        if (!rc && count)
            rc = fsdpck_error_set(err, FSDPCK_ERR_EXISTS, job->config->output_dir, "it holds checkpoints of a run: --resume never needs another output_dir");
        return rc;
    }
    if (strcmp(how, "auto") == 0) {
        rc = find_newest(job, path, found, err);
    } else {
        snprintf(path, FILES_PATH, "%s", how);
        rc = job_check_resume(job, path, &step, err);
        *found = !rc;
    }
    if (!rc && !*found)
        rc = whole_check_place(job->config, err);
    if (!rc && *found) {
        snprintf(line, sizeof line, "going on from %s", path);
        note(job->opt, line);
    }
    return rc;
}

/* One rank's supervisor does it; what cannot be removed is no reason not to train. */
static void clean(const struct job *job)
{
    struct fsdpck_error err = { 0 };
    size_t n = 0;
    char line[2400], text[2048];
    if (job->first != 0)
        return;
    if (files_clean(job->config, &job->fs, &n, &err)) {
        snprintf(line, sizeof line, "left-over checkpoints could not be removed: %s", fsdpck_error_format(&err, text, sizeof text));
        note(job->opt, line);
    } else if (n) {
        snprintf(line, sizeof line, "removed what interrupted saves had left in output_dir: %zu folders", n);
        note(job->opt, line);
    }
}

/* Of a run, one process holds output_dir. It is named to any other run that would write there. */
static int lock(struct job *job, struct fsdpck_error *err)
{
    return job->first ? 0 : fsdpck_folder_lock(job->config->output_dir, "run", &job->fs, &job->lock, err);
}

static int train(struct job *job, struct train_result *done, struct fsdpck_error *err)
{
    char path[FILES_PATH];
    bool found = false;
    clean(job);
    int rc = choose_resume(job, path, &found, err);
    if (rc)
        return rc;
    rc = supervise(job, found ? path : NULL, done, err);
    struct fsdpck_error ignored = { 0 }; /* the run's own error counts more */
    int rc2 = files_check_folder(job, rc ? &ignored : err);
    if (!rc2 && !job->first)
        rc2 = files_write_summary(job, done, rc == 0, rc ? &ignored : err);
    return rc ? rc : rc2;
}

int train_run(const struct train_config *config, const struct train_options *opt, struct train_result *result, struct fsdpck_error *err)
{
    struct train_result done = { 0 };
    struct job job;
    int rc = job_open(config, opt, &job, err);
    if (rc)
        return rc;
    rc = files_make_folders(config, err);
    if (!rc)
        rc = lock(&job, err);
    if (!rc)
        rc = train(&job, &done, err);
    fsdpck_folder_unlock(job.lock);
    job_close(&job);
    if (result)
        *result = done;
    return rc;
}
