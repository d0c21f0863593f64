/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the keys that are "auto" (enum train_automatic): the fastest settings that fit, as train_search() finds
 * them. */
#ifndef TRAIN_AUTOMATIC_H
#define TRAIN_AUTOMATIC_H

#include "rank/job.h"

/* Before job_open(): train.micro_batch_size changes the bits of a run, so a resumed run takes that of its checkpoint,
 * on any machine. */
void automatic_recall(struct train_config *config, const struct train_options *opt);
/* For a job of local ranks, which have not started. settled: receives a copy of the job's config with the choice, and
 * becomes the job's config. */
int automatic_choose(struct job *job, struct train_config *settled, struct fsdpck_error *err);
/* The same for the ranks of a launcher, all of which call it: rank 0 chooses within the smallest memory of a rank, and
 * the others take its choice. */
int automatic_agree(struct comm *comm, struct job *job, struct train_config *settled, struct fsdpck_error *err);

#endif
