/* SPDX-License-Identifier: Apache-2.0 */
/* What a lone rank needs around it: nobody waits for anybody, so the board and the world are there for their form. Knows nothing of what the rank is for. */
#include "rank/alone.h"

int rank_alone_open(const struct job *job, int (*open)(const struct job *job, struct comm *host, struct rank **out, struct fsdpck_error *err),
                    struct rank_alone *out, struct fsdpck_error *err)
{
    *out = (struct rank_alone){ 0 };
    int rc = board_new(0, 1, 1, 600, &out->board, err);
    if (!rc)
        rc = comm_world_new(1, job_comm_sizes(job), out->board, &out->world, err);
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
    board_free(a->board);
    *a = (struct rank_alone){ 0 };
}
