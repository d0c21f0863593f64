/* The life of one rank: load, train, save, end. */
#ifndef TRAIN_LOOP_H
#define TRAIN_LOOP_H

#include "run/rank.h"

/* resume: the checkpoint to go on from, or NULL. notes: survives the process, for the supervisor. */
struct loop_notes {
    uint64_t ndone, saved, stopped, save_failed; /* saved: step of the last committed checkpoint, 0: none */
    uint64_t asked; /* step of a save that was asked for and is not answered yet; 0: none */
};
int loop_run(struct rank *r, const char *resume, struct loop_notes *notes, struct fsdpck_error *err);

#endif
