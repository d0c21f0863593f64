/* SPDX-License-Identifier: Apache-2.0 */
/* The main function of a rank: load, train, save, end. */
#ifndef TRAIN_LOOP_H
#define TRAIN_LOOP_H

#include "rank/rank.h"

/* resume: the checkpoint to go on from, or NULL. notes: survives the process, for the supervisor. */
struct loop_notes {
    uint64_t ndone, saved, stopped, save_failed; /* saved: step of the last committed checkpoint, 0: none */
    uint64_t skipped,
        trailing;   /* steps whose gradients were not finite: of this process's; and without a good one after them */
    uint64_t asked; /* step of a save that was asked for and is not answered yet; 0: none */
};
int loop_run(struct rank *r, const char *resume, struct loop_notes *notes, struct fsdpck_error *err);
/* The run is at its end, and its last steps, ten or half of them all, were skipped: what it leaves is no result. */
bool loop_diverged(const struct loop_notes *notes, uint64_t nsteps);

#endif
