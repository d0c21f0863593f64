/* SPDX-License-Identifier: Apache-2.0 */
/* Saves in the background. Copies the state into buffers that were allocated before step 0; a thread writes them while
 * the next steps run. At most one save is in flight. */
#ifndef TRAIN_SAVER_H
#define TRAIN_SAVER_H

#include "rank/rank.h"

struct saver;

struct saver_result {
    uint64_t step;  /* step of the saved state */
    bool failed;    /* the same on every rank */
    bool lost;      /* a rank is lost: the save failed on this rank, perhaps on no other; the run ends */
    double seconds; /* from the start of the copy to the commit */
    struct fsdpck_error
        why; /* if failed: the error of the first rank whose failure is its own; the same on every rank */
};

int saver_new(struct rank *r, struct saver **out, struct fsdpck_error *err);
void saver_free(struct saver *s); /* waits for the save in flight; NULL does nothing */
/* Copies the state to save. No save may be in flight. Every rank must call it for the same step. */
int saver_copy(struct saver *s, struct fsdpck_error *err);
/* Starts to write the copy. Called when the step is logged: a run that resumes from it does not log it again. */
void saver_write(struct saver *s);
bool saver_is_busy(const struct saver *s);
/* Returns the result of the last save that was started, once. False: there is no result yet, or it has been taken.
 * wait: blocks until a save in flight has finished. */
bool saver_take(struct saver *s, bool wait, struct saver_result *out);

#endif
