/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses a checkpoint by inspecting it, then by loading it. Skips only damaged ones. A checkpoint of another run, of a
 * later version or without read permission ends the run: the user would not want to resume from an older one. */
#include "run/resume.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <fsdpck/check.h>

#include "state/checkpoint.h"
#include "state/load.h"
#include "state/export_model.h"
#include "state/snapshots.h"

static bool is_auto(const struct job *job)
{
    if (job->recovery.again)
        return !job->recovery.named;
    return !job->opt->resume || strcmp(job->opt->resume, "auto") == 0;
}

static void note(const struct job *job, const char *line)
{
    if (job->first == 0 && job->opt->note)
        job->opt->note(job->opt->ctx, line);
}

static bool is_damage(const struct fsdpck_error *why)
{
    switch (why->code) {
    case FSDPCK_ERR_FORMAT:
    case FSDPCK_ERR_MISSING:
    case FSDPCK_ERR_DAMAGED:
    case FSDPCK_ERR_LIMIT: return true;
    case FSDPCK_ERR_IO: return why->sys_errno == EIO; /* a disk error */
    default: return false;
    }
}

/* Rank 0 renames a damaged checkpoint. Notes a failure to rename: then the step cannot be saved again. */
static void set_aside(const struct job *job, const char *path, const struct fsdpck_error *why)
{
    struct fsdpck_error err = { 0 };
    char *aside = NULL, line[2 * FILES_PATH + 4400], text[2048], text2[2048];
    if (job->first != 0)
        return;
    int rc = fsdpck_set_aside(path, &job->fs, &aside, &err);
    if (!rc)
        snprintf(line, sizeof line, "checkpoint passed over: %s; set aside as %s",
                 fsdpck_error_format(why, text, sizeof text), aside);
    else
        snprintf(line, sizeof line, "checkpoint passed over: %s; it could not be set aside: %s",
                 fsdpck_error_format(why, text, sizeof text), fsdpck_error_format(&err, text2, sizeof text2));
    note(job, line);
    free(aside);
}

/* Finds the newest checkpoint before step `below` that seems intact. *step 0: none. *npassed: number of damaged ones
 * before it. */
static int find_newest(const struct job *job, uint64_t below, uint64_t *step, size_t *npassed, struct fsdpck_error *err)
{
    uint64_t *steps, ignored_step;
    size_t count;
    char path[FILES_PATH];
    int rc = files_list_checkpoints(job->config, &steps, &count, err);
    *step = 0;
    for (size_t i = 0; i < count && !rc && !*step; i++) {
        struct fsdpck_error why = { 0 };
        if (steps[i] >= below)
            continue;
        rc = files_checkpoint_path(job->config, steps[i], path, err);
        int bad = rc ? 0 : job_check_resume(job, path, &ignored_step, &why);
        if (bad && is_damage(&why)) {
            set_aside(job, path, &why);
            ++*npassed;
        } else if (bad) {
            *err = why;
            rc = bad;
        } else if (!rc) {
            *step = steps[i];
        }
    }
    free(steps);
    return rc;
}

static void note_choice(const struct job *job, const char *path, size_t npassed)
{
    char line[FILES_PATH + 64];
    snprintf(line, sizeof line, "going on from %s", path ? path : "");
    if (path)
        note(job, line);
    else if (npassed)
        note(job, "no whole checkpoint is left: the run begins anew, with step 1");
}

static int refuse_any(const struct job *job, struct fsdpck_error *err)
{
    uint64_t *steps;
    size_t count;
    int rc = files_list_checkpoints(job->config, &steps, &count, err);
    free(steps);
    if (!rc && count)
        rc = fsdpck_error_set(err, FSDPCK_ERR_EXISTS, job->config->output_dir,
                              "it holds checkpoints of a run: --resume never needs another output_dir");
    return rc;
}

int resume_choose(const struct job *job, char path[FILES_PATH], bool *found, struct fsdpck_error *err)
{
    uint64_t step = 0;
    size_t npassed = 0;
    int rc;
    *found = false;
    if (is_auto(job)) {
        rc = find_newest(job, UINT64_MAX, &step, &npassed, err);
        *found = !rc && step;
        if (*found)
            rc = files_checkpoint_path(job->config, step, path, err);
    } else if (strcmp(job->opt->resume, "never") == 0) {
        rc = refuse_any(job, err);
    } else {
        snprintf(path, FILES_PATH, "%s", job->opt->resume);
        rc = job_check_resume(job, path, &step, err);
        *found = !rc;
    }
    if (!rc)
        rc = export_model_check_place(job->config, err);
    if (!rc)
        note_choice(job, *found ? path : NULL, npassed);
    return rc;
}

int resume_find(const struct job *job, uint64_t below, char path[FILES_PATH], uint64_t *step, struct fsdpck_error *err)
{
    size_t npassed = 0;
    int rc = find_newest(job, below, step, &npassed, err);
    return rc || !*step ? rc : files_checkpoint_path(job->config, *step, path, err);
}

/* True if path is output_dir's own checkpoint of that step, under any name. */
static bool is_ours(const struct job *job, const char *path, uint64_t step)
{
    struct stat a, b;
    char own[FILES_PATH];
    return files_checkpoint_path(job->config, step, own, NULL) == 0 && stat(own, &a) == 0 && stat(path, &b) == 0 &&
           a.st_ino == b.st_ino && a.st_dev == b.st_dev;
}

/* Rank 0 chooses and tells the others the step. 0: none. */
static int agree_on_next(struct rank *r, const char *path, const struct fsdpck_error *why, uint64_t *step,
                         struct fsdpck_error *err)
{
    const uint64_t below = files_checkpoint_step(path);
    struct fsdpck_error mine = { 0 };
    size_t npassed = 1;
    *step = 0;
    if (r->comm->rank == 0) {
        set_aside(r->job, path, why);
        find_newest(r->job, below, step, &npassed, &mine);
    }
    int rc = comm_first_error(r->comm, &mine, err);
    if (!rc && mine.code) {
        *err = mine;
        rc = mine.code;
    }
    return rc ? rc : r->comm->ops->sum_u64(r->comm, step, 1, err);
}

static int restore(struct rank *r, uint64_t *saved, struct fsdpck_error *err)
{
    const struct recovery *recovery = &r->job->recovery;
    comm_at(r->comm, 0, "loading of the state in memory");
    int rc = snapshots_restore(recovery->snapshots, r, err);
    *saved = recovery->saved;
    return rc ? rc : rank_publish(r, false, err);
}

int resume_load(struct rank *r, const char *path, uint64_t *saved, struct fsdpck_error *err)
{
    if (r->job->recovery.step)
        return restore(r, saved, err);
    char next[FILES_PATH];
    int rc = 0;
    *saved = 0;
    while (path) {
        struct fsdpck_error why = { 0 };
        uint64_t step;
        rank_resume(r, path, &why);
        rc = comm_first_error(r->comm, &why, err);
        if (!rc && !why.code) {
            *saved = is_ours(r->job, path, r->step) ? r->step : 0;
            return rank_publish(r, false, err);
        }
        if (!rc && !(is_auto(r->job) && is_damage(&why))) {
            *err = why;
            rc = why.code;
        }
        if (!rc)
            rc = agree_on_next(r, path, &why, &step, err);
        if (!rc && step)
            rc = files_checkpoint_path(r->job->config, step, next, err);
        if (rc)
            return rc;
        path = step ? next : NULL;
        if (r->comm->rank == 0)
            note_choice(r->job, path, 1);
        if (!path)
            rc = rank_start_anew(r, err);
    }
    return rc;
}
