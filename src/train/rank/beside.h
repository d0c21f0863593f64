/* SPDX-License-Identifier: Apache-2.0 */
/* A rank, alone, for one adapter beside a base that another rank holds: its own values, gradients, moments and masters,
 * to be loaded, updated and saved as those of a run. */
#ifndef TRAIN_BESIDE_H
#define TRAIN_BESIDE_H

#include "rank/rank.h"

struct rank_beside {
    struct job_status *job_status;
    struct comm_world *world;
    struct comm *comm;
    struct rank *rank;
};

/* job: of one rank, its layout as layout_beside() leaves it; borrowed, as is base. The caller must call
 * rank_beside_close() also after a failure. */
int rank_beside_open(const struct rank *base, const struct job *job, struct rank_beside *out, struct fsdpck_error *err);
void rank_beside_close(struct rank_beside *b); /* does nothing if all zeros */
/* Bytes that it takes besides the values in parameter memory. */
uint64_t rank_beside_nbytes(const struct layout *l);
/* The thread that uses the rank next computes with c. */
static inline void rank_beside_use(struct rank_beside *b, struct compute *c)
{
    b->rank->compute = c;
}

#endif
