/* SPDX-License-Identifier: Apache-2.0 */
/* The supervisor's part of --elastic: how many ranks are left, where they go on, and what is said about it. What the
 * ranks do is in run/loop.c and state/snapshots.c. */
#include "run/elastic.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rank/files.h"
#include "run/open.h"
#include "run/resume.h"
#include "run/supervise.h"
#include "state/checkpoint.h"
#include "state/snapshots.h"

struct elastic {
    struct job *job;
    uint32_t nrestarts;
    uint64_t ndone; /* steps that the run has done: no checkpoint of it is beyond the step after them */
    char path[FILES_PATH];
    const char *resume;  /* the checkpoint to start from, or NULL */
    const char *named;   /* the checkpoint that --resume names, or NULL */
    uint64_t named_step; /* 0 without it */
};

static void note(const struct job *job, const char *line)
{
    if (job->opt->note)
        job->opt->note(job->opt->ctx, line);
}

/* Adds to the error of the lost rank why the run does not go on. */
static int give_up(struct fsdpck_error *err, const char *why)
{
    struct fsdpck_error lost = *err;
    *err = (struct fsdpck_error){ 0 };
    fsdpck_error_set(err, lost.code, NULL, "%s; %s", lost.message, why);
    fsdpck_error_hint(err, "%s", lost.hint);
    return err->code;
}

/* Chooses the newest state: in memory, in output_dir, or the one that --resume names. */
static int choose_state(struct elastic *e, struct fsdpck_error *err)
{
    struct recovery *rec = &e->job->recovery;
    uint64_t on_disk = 0;
    rec->step = rec->snapshots ? snapshots_choose(rec->snapshots) : 0;
    int rc = resume_find(e->job, e->ndone + 2, e->path, &on_disk, err);
    const uint64_t newest = on_disk > e->named_step ? on_disk : e->named_step;
    if (newest > rec->step)
        rec->step = 0;
    rec->saved = on_disk;
    rec->named = !rec->step && newest > on_disk;
    e->resume = rec->step || !newest ? NULL : rec->named ? e->named : e->path;
    return rc;
}

static void note_choice(const struct elastic *e)
{
    const struct job *job = e->job;
    char line[FILES_PATH + 200], from[FILES_PATH + 40] = "the beginning";
    if (job->recovery.step)
        snprintf(from, sizeof from, "step %llu, which is in memory", (unsigned long long)job->recovery.step);
    else if (e->resume)
        snprintf(from, sizeof from, "%s", e->resume);
    snprintf(line, sizeof line, "going on with %u of %u ranks from %s", job->nranks, job->recovery.all_ranks, from);
    note(job, line);
}

/* Takes the largest number of ranks that the config allows. */
static int set_nranks(struct job *job, uint32_t most, uint32_t least, struct fsdpck_error *err)
{
    int rc = -1;
    for (uint32_t n = most; rc && n >= least; n--) {
        *err = (struct fsdpck_error){ 0 };
        rc = job_set_nranks(job, n, err);
    }
    return rc;
}

/* Prepares the next start after a loss. *err: in, the error of the loss; out, the reason why the run does not go on. */
static int recover(struct elastic *e, const struct supervise_end *end, struct fsdpck_error *err)
{
    struct job *job = e->job;
    const uint32_t left = job->nranks - end->nlost, least = job->opt->elastic_nranks;
    struct fsdpck_error why = { 0 };
    char line[1200];
    if (left < least) {
        snprintf(line, sizeof line, "%u of %u ranks %s left, and --elastic wants at least %u", left, job->nranks,
                 left == 1 ? "is" : "are", least);
        return give_up(err, line);
    }
    if (e->nrestarts == job->opt->max_restarts) {
        snprintf(line, sizeof line, "the ranks were started again %u time%s before, as often as --max-restarts allows",
                 e->nrestarts, fsdpck_plural(e->nrestarts));
        return give_up(err, line);
    }
    if (set_nranks(job, left, least, &why)) {
        char range[32] = "";
        if (least < left)
            snprintf(range, sizeof range, "%u to ", least);
        snprintf(line, sizeof line, "the config does not allow %s%u rank%s: %s", range, left, fsdpck_plural(left),
                 why.message);
        return give_up(err, line);
    }
    e->nrestarts++;
    job->recovery.lost_ns = end->ended_ns;
    snprintf(line, sizeof line, "%s; %u of %u ranks %s left (restart %u of at most %u)", err->message, left,
             left + end->nlost, left == 1 ? "is" : "are", e->nrestarts, job->opt->max_restarts);
    note(job, line);
    *err = (struct fsdpck_error){ 0 };
    return 0;
}

/* Prepares the next start after a checkpoint at which the lost ranks come back. */
static int come_back(struct elastic *e, struct fsdpck_error *err)
{
    struct job *job = e->job;
    job->recovery.lost_ns = 0;
    return job_set_nranks(job, job->recovery.all_ranks, err);
}

static int start_again(struct elastic *e, const struct supervise_end *end, struct fsdpck_error *err)
{
    e->ndone = end->ndone > e->ndone ? end->ndone : e->ndone;
    e->job->recovery.again = true;
    e->job->recovery.stopping = end->stopping;
    if (end->skipped_before) /* 0: the ranks were lost while they loaded */
        e->job->recovery.skipped_before = end->skipped_before;
    files_clean_up(e->job);
    int rc = choose_state(e, err);
    if (!rc)
        note_choice(e);
    return rc;
}

/* Finds out which step the run begins at. Later checkpoints in output_dir would be of another run, and could not be
 * told from those of this one. */
static int begin(struct elastic *e, struct fsdpck_error *err)
{
    const char *how = e->job->opt->resume;
    uint64_t newest = 0;
    int rc = e->resume ? job_check_resume(e->job, e->resume, &e->ndone, err) : 0;
    if (rc || !e->resume || !how || strcmp(how, "auto") == 0)
        return rc;
    e->named = e->resume;
    e->named_step = e->ndone;
    rc = resume_find(e->job, UINT64_MAX, e->path, &newest, err);
    if (rc || newest <= e->ndone)
        return rc;
    return fsdpck_error_set(err, FSDPCK_ERR_EXISTS, e->job->config->output_dir,
                            "it has a checkpoint of step %llu, after the one to resume from (step %llu): --elastic "
                            "wants another output_dir",
                            (unsigned long long)newest, (unsigned long long)e->ndone);
}

int elastic_run(struct job *job, const char *resume, struct train_result *result, struct fsdpck_error *err)
{
    struct elastic e = { .job = job, .resume = resume };
    bool again = true;
    int rc = begin(&e, err);
    if (!rc && job_keeps_snapshots(job))
        rc = snapshots_new(&job->layout, NULL, &job->recovery.snapshots, err);
    job->recovery.all_ranks = job->nranks;
    while (!rc && again) {
        struct supervise_end end;
        rc = supervise(job, e.resume, NULL, result, &end, err);
        again = end.nlost || (!rc && end.comes_back);
        if (rc && end.nlost)
            rc = recover(&e, &end, err);
        else if (again)
            rc = come_back(&e, err);
        if (!rc && again)
            rc = start_again(&e, &end, err);
    }
    snapshots_free(job->recovery.snapshots);
    job->recovery.snapshots = NULL;
    return rc;
}
