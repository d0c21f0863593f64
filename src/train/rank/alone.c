/* SPDX-License-Identifier: Apache-2.0 */
/* Creates the job status and the world that the code of ranks expects, for a single rank. Knows nothing of the purpose
 * of the rank. */
#include "rank/alone.h"

int rank_alone_open(const struct job *job,
                    int (*open)(const struct job *job, struct comm *host, struct rank **out, struct fsdpck_error *err),
                    struct rank_alone *out, struct fsdpck_error *err)
{
    *out = (struct rank_alone){ 0 };
    int rc = job_status_new(0, 1, 1, 600, &out->job_status, err);
    if (!rc)
        rc = comm_world_new(1, job_comm_sizes(job), out->job_status, &out->world, err);
    if (!rc)
        rc = comm_world_join(out->world, 0, &out->comm, err);
    return rc ? rc : open(job, out->comm, &out->rank, err);
}

void rank_alone_close(struct rank_alone *a)
{
    rank_close(a->rank);
    if (a->comm)
        a->comm->ops->free(a->comm);
    comm_world_free(a->world);
    job_status_free(a->job_status);
    *a = (struct rank_alone){ 0 };
}
