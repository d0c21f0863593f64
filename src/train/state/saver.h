/* SPDX-License-Identifier: Apache-2.0 */
/* Saves in the background. The state is copied into buffers that were allocated before step 0, and a thread writes
 * them while the next steps run. One save is in flight at a time. */
#ifndef TRAIN_SAVER_H
#define TRAIN_SAVER_H

#include "rank/rank.h"

struct saver;

struct saver_result {
    uint64_t step;           /* of the state that was saved */
    bool failed;             /* on every rank alike */
    bool lost;               /* a rank is: failed here, and perhaps on no other rank; the run ends */
    double seconds;          /* from the copy to the commit */
    struct fsdpck_error why; /* where it failed: of the first rank whose failure is its own; the same on every rank */
};

int saver_new(struct rank *r, struct saver **out, struct fsdpck_error *err);
void saver_free(struct saver *s); /* waits; NULL does nothing */
uint64_t saver_nbytes(const struct layout *l);
/* Nothing may be in flight. Every rank calls it for the same step. */
int saver_start(struct saver *s, struct fsdpck_error *err);
bool saver_is_busy(const struct saver *s);
/* The result of the save that was started last, once. False: there is none yet, or it has been taken. `wait`: until
 * there is. */
bool saver_take(struct saver *s, bool wait, struct saver_result *out);

#endif
