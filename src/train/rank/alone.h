/* SPDX-License-Identifier: Apache-2.0 */
/* A world of one rank in the process of the caller: for tests, and for sampling. */
#ifndef TRAIN_ALONE_H
#define TRAIN_ALONE_H

#include "rank/rank.h"

struct rank_alone {
    struct job_status *job_status;
    struct comm_world *world;
    struct comm *comm;
    struct rank *rank;
};

/* open: rank_open() or rank_open_bare(). job is borrowed until rank_alone_close(), which the caller must call also
 * after a failure. */
int rank_alone_open(const struct job *job,
                    int (*open)(const struct job *job, struct comm *host, struct rank **out, struct fsdpck_error *err),
                    struct rank_alone *out, struct fsdpck_error *err);
void rank_alone_close(struct rank_alone *a); /* does nothing if all zeros */

#endif
