/* SPDX-License-Identifier: Apache-2.0 */
/* Profile of a rank: time in kernels by kind, in waits for other ranks, data and saves. */
#ifndef TRAIN_PROFILE_H
#define TRAIN_PROFILE_H

#include "rank/rank.h"

struct profile;

/* From now on this rank's kernels are timed, by events of its device. One a thread, which calls them. */
int profile_new(struct rank *r, struct profile **out, struct fsdpck_error *err);
void profile_free(struct profile *p); /* NULL does nothing. Kernels are not timed any more */
/* A step is over. */
void profile_step(struct profile *p, const struct train_metrics *m);
/* profile.json in output_dir, and a note a row. */
int profile_report(const struct profile *p, struct fsdpck_error *err);

#endif
