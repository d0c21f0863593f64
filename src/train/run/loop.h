/* SPDX-License-Identifier: Apache-2.0 */
/* The main function of a rank: load, train, save, end. */
#ifndef TRAIN_LOOP_H
#define TRAIN_LOOP_H

#include "rank/rank.h"

/* Results that outlive the rank's process, for the supervisor. loop_run(): resume is the checkpoint to resume from, or
 * NULL. */
struct loop_notes {
    uint64_t ndone, saved, stopped, save_failed; /* saved: step of the last committed checkpoint, 0: none */
    uint64_t skipped, trailing; /* steps with non-finite gradients: in this process; since the last update */
    uint64_t asked;             /* step of a requested save that has not been answered; 0: none */
};
int loop_run(struct rank *r, const char *resume, struct loop_notes *notes, struct fsdpck_error *err);
/* True if the run has reached its end, and skipped its last steps: ten, or half of all. Its result is not usable. */
bool loop_diverged(const struct loop_notes *notes, uint64_t nsteps);

#endif
