/* SPDX-License-Identifier: Apache-2.0 */
/* The training loop of one run. All ranks execute it in lockstep. */
#include "run/loop.h"

#include <stdio.h>

#include "run/agree.h"
#include "run/course.h"
#include "run/profile.h"
#include "run/resume.h"
#include "run/save.h"
#include "run/step.h"
#include "state/load.h"
#include "state/snapshots.h"

/* One step: gradients of the whole batch, norm, update. */
static int run_step(struct course *c, struct train_metrics *m, struct requests *requests, struct fsdpck_error *err)
{
    struct rank *r = c->rank;
    const struct job *job = r->job;
    struct step_plan plan;
    course_begin_step(c, m);
    int rc = data_step(job->data, job->config, r->step, &plan, err);
    m->data_wait_seconds = course_seconds(c);
    if (!rc)
        rc = rank_gradients(r, &plan, &m->loss, err);
    rc = course_update(c, rc, &plan, m, requests, err);
    step_plan_free(&plan);
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

static int train(struct course *c, struct fsdpck_error *err)
{
    struct rank *r = c->rank;
    int rc = save_again(r, c->saver, c->results, err);
    if (!rc)
        rc = course_draw_first(c, err);
    while (r->step < r->job->nsteps && !c->stopping && !rc) {
        struct train_metrics m = { 0 };
        struct requests requests = { .stop = job_status_stopping(r->comm->job_status) };
        course_poll(c, &requests);
        if (c->profile)
            profile_begin(c->profile);
        rc = run_step(c, &m, &requests, err);
        if (!rc && c->profile)
            profile_end(c->profile);
        if (!rc)
            rc = course_end_step(c, &m, &requests, err);
    }
    course_end(c);
    return rc;
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
        course_count(r, results);
    return rc ? rc : r->comm->ops->barrier(r->comm, "start", err);
}

int loop_run(struct rank *r, const char *resume, struct loop_results *results, struct fsdpck_error *err)
{
    struct course course;
    uint64_t nagain = 0;
    int rc = start(r, resume, results, err);
    if (!rc)
        rc = course_open(r, results, &course, &nagain, err);
    else
        course = (struct course){ .rank = r, .results = results };
    if (!rc && r->job->recovery.snapshots && !r->job->recovery.again)
        snapshots_touch(r->job->recovery.snapshots, r);
    if (!rc)
        rc = course_report_start(r, err);
    if (!rc)
        note_cost(r, nagain);
    if (!rc)
        rc = train(&course, err);
    if (!rc && course.profile)
        rc = profile_report(course.profile, err);
    if (!rc)
        rc = course_export(&course, err);
    course_close_files(&course, &rc, err);
    if (rc)
        rank_fail(r->job, r->comm->job_status, err); /* first: course_free() joins a thread that may wait for others */
    course_free(&course);
    return rc ? rc : r->comm->ops->barrier(r->comm, "end", err);
}
