/* SPDX-License-Identifier: Apache-2.0 */
/* Copies in memory over several hosts. The memory of each host holds the rows of its own ranks, and those of ranks of
 * another host, whose neighbours its ranks are. So all rows are left when one host is lost. */
#ifndef TRAIN_SPREAD_H
#define TRAIN_SPREAD_H

#include "state/snapshots.h"

/* All functions are collective. */

/* Finds out which ranks have the same keeper, and chooses neighbours. c: COMM_MAIN between hosts. run: hash of what the
 * run depends on, the same on all ranks. */
int spread_join(struct snapshots *s, struct comm *c, uint64_t run, struct fsdpck_error *err);
/* After snapshots_take(): brings this rank's rows to its neighbour. */
int spread_rows(struct snapshots *s, struct comm *c, uint32_t index, struct fsdpck_error *err);
/* After snapshots_complete(): the same for the head, with which the neighbour's copy counts. */
int spread_head(struct snapshots *s, struct comm *c, uint32_t index, struct fsdpck_error *err);
/* Chooses the newest copy that is whole on all hosts together, and newer than step `above`; brings the rows that a rank
 * needs to its host, for snapshots_restore(). *step 0: there is none. */
int spread_choose(struct snapshots *s, struct comm *c, uint64_t above, uint64_t *step, struct fsdpck_error *err);

#endif
