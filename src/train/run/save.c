/* SPDX-License-Identifier: Apache-2.0 */
/* When the loop saves, and what it says about a save. */
#include "run/save.h"

#include <stdio.h>

#include "state/snapshots.h"
#include "state/spread.h"

static double now(void)
{
    return 1e-9 * (double)comm_now_ns();
}

bool save_is_due(const struct rank *r, bool stopping)
{
    uint64_t every = r->job->config->checkpoint.save_steps;
    return stopping || r->step == r->job->nsteps || (every && r->step % every == 0);
}

void save_collect(struct rank *r, struct saver *saver, bool wait, bool last, struct loop_results *results)
{
    struct saver_result done;
    char line[2400], text[2048];
    if (!saver_take(saver, wait, &done))
        return;
    results->save_failed = done.failed;
    if (!done.failed) {
        results->saved = done.step;
        if (results->requested_save == done.step) {
            snprintf(line, sizeof line, "control: the checkpoint of step %llu, which was asked for, is saved",
                     (unsigned long long)done.step);
            rank_note(r, line);
        }
        return;
    }
    snprintf(line, sizeof line, "the checkpoint of step %llu could NOT be saved%s: %s", (unsigned long long)done.step,
             last ? "" : ", training goes on", fsdpck_error_format(&done.why, text, sizeof text));
    if (!done.lost)
        rank_note(r, line);
}

int save_copy(struct rank *r, struct saver *saver, bool last, struct loop_results *results, double *stall,
              struct fsdpck_error *err)
{
    double started = now();
    char line[160];
    if (saver_is_busy(saver)) {
        snprintf(line, sizeof line,
                 "the checkpoint before that of step %llu is still being written: training waits for it",
                 (unsigned long long)r->step);
        rank_note(r, line);
    }
    comm_at(r->comm, r->step, "saving");
    save_collect(r, saver, true, last, results);
    int rc = saver_copy(saver, err);
    *stall = now() - started;
    return rc;
}

int save_again(struct rank *r, struct saver *saver, struct loop_results *results, struct fsdpck_error *err)
{
    const uint64_t every = r->job->config->checkpoint.save_steps;
    double ignored;
    if (!r->job->recovery.step || !every || results->saved >= r->step / every * every)
        return 0;
    int rc = save_copy(r, saver, false, results, &ignored, err);
    if (!rc)
        saver_write(saver);
    return rc;
}

bool save_and_come_back(struct rank *r, struct saver *saver, bool last, struct loop_results *results)
{
    if (last || r->job->nranks >= r->job->recovery.all_ranks)
        return false;
    save_collect(r, saver, true, last, results);
    results->comes_back = results->saved == r->step;
    return results->comes_back;
}

/* Two copies in turn. */
static uint32_t snapshot_index(const struct rank *r)
{
    return r->step / r->job->config->checkpoint.memory_every % 2;
}

bool save_snapshot_is_due(const struct rank *r, bool last)
{
    return r->job->recovery.snapshots && !last && r->step % r->job->config->checkpoint.memory_every == 0;
}

int save_snapshot(const struct rank *r, double *stall, struct fsdpck_error *err)
{
    const double started = now();
    comm_at(r->comm, r->step, "copying the state in memory");
    int rc = snapshots_take(r->job->recovery.snapshots, r, snapshot_index(r), err);
    if (!rc && r->job->opt->keeper)
        rc = spread_rows(r->job->recovery.snapshots, r->host, snapshot_index(r), err);
    *stall += now() - started;
    return rc;
}

int save_snapshot_complete(const struct rank *r, struct fsdpck_error *err)
{
    snapshots_complete(r->job->recovery.snapshots, r, snapshot_index(r));
    return r->job->opt->keeper ? spread_head(r->job->recovery.snapshots, r->host, snapshot_index(r), err) : 0;
}
