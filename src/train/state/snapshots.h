/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of the state of a run in memory that the supervisor of its ranks owns, or a keeper: they outlive a rank. There
 * are two, so that one is whole while the other is written. Each holds all rows of the trained parameters and their
 * moments; any number of ranks can restore it. Over several hosts, each host holds the rows of its ranks and of some of
 * another host: state/spread.h. */
#ifndef TRAIN_SNAPSHOTS_H
#define TRAIN_SNAPSHOTS_H

#include "rank/rank.h"

struct snapshots;

/* For the supervisor, before it forks. Memory is allocated on first touch. keeper: for a rank of several hosts, the
 * name of the process that keeps the memory (comm/keeper.h); else NULL. */
int snapshots_new(const struct layout *l, const char *keeper, struct snapshots **out, struct fsdpck_error *err);
void snapshots_free(struct snapshots *s); /* NULL does nothing */
/* Bytes of both copies that a rank writes: over several hosts, of the rows of another rank too. */
uint64_t snapshots_nbytes(const struct job *job);
/* For the supervisor, while no rank runs. The step of the newest copy that every rank completed and that has the bits
 * which they wrote; 0: none. Forgets the other copy. Reads the copy once. */
uint64_t snapshots_choose(struct snapshots *s);

/* Touches the memory of the rows that this rank writes, so that no step pays for the page faults. Keeps what is in it.
 */
void snapshots_touch(const struct snapshots *s, const struct rank *r);
/* Copies this rank's rows. Every rank must call it for the same step; `index` is 0 and 1 in turn. The copy counts only
 * once all ranks have called snapshots_complete() for it. */
int snapshots_take(struct snapshots *s, const struct rank *r, uint32_t index, struct fsdpck_error *err);
void snapshots_complete(struct snapshots *s, const struct rank *r, uint32_t index);
/* Reads this rank's rows and the position of the run from the chosen copy; does not publish them (rank_publish()
 * does). */
int snapshots_restore(const struct snapshots *s, struct rank *r, struct fsdpck_error *err);

#endif
