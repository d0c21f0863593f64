/* SPDX-License-Identifier: Apache-2.0 */
/* Saves of the training loop: checkpoints in the background, and snapshots in memory. What a function decides, it
 * decides alike on every rank. */
#ifndef TRAIN_SAVE_H
#define TRAIN_SAVE_H

#include "rank/rank.h"
#include "run/results.h"
#include "state/saver.h"

bool save_is_due(const struct rank *r, bool stopping);
/* Begins a save, between this step's update and the next one: copies the state. saver_write() writes it in the
 * background. *stall: seconds for which training stood still. */
int save_copy(struct rank *r, struct saver *saver, bool last, struct loop_results *results, double *stall,
              struct fsdpck_error *err);
/* Takes the result of a save that has ended; with `wait`, of the one in flight. If a save fails because of a full or
 * broken disk, warns; the run continues, and the next save tries again. If a rank is lost, prints nothing: the run ends
 * with that error. last: no step follows. */
void save_collect(struct rank *r, struct saver *saver, bool wait, bool last, struct loop_results *results);
/* After a loss: saves the restored state if the last checkpoint before it was lost with the rank. */
int save_again(struct rank *r, struct saver *saver, struct loop_results *results, struct fsdpck_error *err);
/* Returns whether lost ranks come back after the save of this step. Waits for the save; if it has failed, training goes
 * on without them. */
bool save_and_come_back(struct rank *r, struct saver *saver, bool last, struct loop_results *results);

bool save_snapshot_is_due(const struct rank *r, bool last);
/* Copies the state in memory. *stall grows by the seconds that this takes. */
int save_snapshot(const struct rank *r, double *stall, struct fsdpck_error *err);
/* The snapshot counts from now on. Called when the step is logged: a run that goes on from it does not log it again. */
int save_snapshot_complete(const struct rank *r, struct fsdpck_error *err);

#endif
