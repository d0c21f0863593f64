/* SPDX-License-Identifier: Apache-2.0 */
#include "run/kept.h"

#include <stdio.h>

#include "rank/files.h"
#include "state/snapshots.h"
#include "state/spread.h"
#include "state/state.h"

/* Every rank learns the first reason why one has no copies; code 0: all have some. */
static int open_all(struct job *job, struct comm *comm, struct fsdpck_error *why, struct fsdpck_error *err)
{
    struct fsdpck_error mine = { 0 };
    if (snapshots_new(&job->layout, job->opt->keeper, &job->recovery.snapshots, &mine))
        fsdpck_error_set(why, FSDPCK_ERR_IO, NULL, "rank %u on host '%.64s': %.300s", comm->rank,
                         job_status_host(comm->job_status, comm->rank), mine.message);
    return comm_first_error(comm, why, err);
}

static void note(const struct job *job, const char *line)
{
    if (job->first == 0 && job->opt->note)
        job->opt->note(job->opt->ctx, line);
}

static void give_up(struct job *job, const struct fsdpck_error *why)
{
    char line[500];
    snprintf(line, sizeof line, "no copies of the state are kept in memory: %.400s", why->message);
    note(job, line);
    snapshots_free(job->recovery.snapshots);
    job->recovery.snapshots = NULL;
}

static int choose(struct job *job, struct comm *comm, uint64_t on_disk, struct fsdpck_error *err)
{
    struct recovery *rec = &job->recovery;
    char line[120];
    int rc = spread_join(rec->snapshots, comm, state_fingerprint(job), err);
    if (!rc)
        rc = spread_choose(rec->snapshots, comm, on_disk, &rec->step, err);
    if (rc || !rec->step)
        return rc;
    rec->saved = on_disk;
    snprintf(line, sizeof line, "going on from step %llu, which is in memory", (unsigned long long)rec->step);
    note(job, line);
    return 0;
}

int kept_open(struct job *job, struct comm *comm, const char *resume, struct fsdpck_error *err)
{
    struct fsdpck_error why = { 0 };
    if (!job->opt->keeper || !job_keeps_snapshots(job))
        return 0;
    comm_at(comm, 0, "search for the state in memory");
    int rc = open_all(job, comm, &why, err);
    if (!rc && why.code) {
        give_up(job, &why);
        return 0;
    }
    return rc ? rc : choose(job, comm, resume ? files_checkpoint_step(resume) : 0, err);
}
