/* SPDX-License-Identifier: Apache-2.0 */
/* Forks the ranks and collects their result. */
#ifndef TRAIN_SUPERVISE_H
#define TRAIN_SUPERVISE_H

#include "rank/job.h"

/* Starts this process's ranks (all of the run, or the one that a launcher meant), watches them until they are gone.
 * result: what they noted. The error is the first that a rank left, or the sentence on the one that was lost. resume:
 * the checkpoint to go on from, or NULL. */
int supervise(struct job *job, const char *resume, struct train_result *result, struct fsdpck_error *err);
/* For a rank of a launcher that cannot begin: tells the other ranks. Returns whether this one prints the error, so that
 * ranks that fail alike print it once. */
bool supervise_refusal(const struct train_options *opt, const struct fsdpck_error *err);

#endif
