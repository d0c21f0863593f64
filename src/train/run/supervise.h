/* SPDX-License-Identifier: Apache-2.0 */
/* Forks the ranks and collects their result. */
#ifndef TRAIN_SUPERVISE_H
#define TRAIN_SUPERVISE_H

#include "rank/job.h"

/* Starts the ranks of this process (all ranks of the run, or the launcher's one) and watches them until they have
 * ended. result: taken from the notes of the first rank. The error is the first that a rank recorded, or names the rank
 * that was lost. resume: the checkpoint to resume from, or NULL. */
int supervise(struct job *job, const char *resume, struct train_result *result, struct fsdpck_error *err);
/* For a launched rank that cannot start: tells the other ranks. Returns true if this rank must print the error; ranks
 * that fail alike print it once. */
bool supervise_refusal(const struct train_options *opt, const struct fsdpck_error *err);

#endif
