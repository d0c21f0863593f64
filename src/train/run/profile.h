/* SPDX-License-Identifier: Apache-2.0 */
/* Profile of a rank: time in kernels by kind, in waits for other ranks by group of parameters, data and saves. */
#ifndef TRAIN_PROFILE_H
#define TRAIN_PROFILE_H

#include "rank/rank.h"

struct profile;

/* Starts to time this rank's kernels with events of its device. At most one per thread; that thread must call the
 * kernels. */
int profile_new(struct rank *r, struct profile **out, struct fsdpck_error *err);
void profile_free(struct profile *p); /* stops timing; NULL does nothing */
/* Call before and after a step: what lies between steps is not counted. */
void profile_begin(struct profile *p);
void profile_end(struct profile *p);
/* Call when the metrics of the step are complete. */
void profile_step(struct profile *p, const struct train_metrics *m);
/* Writes profile.json to output_dir, and a note per row. */
int profile_report(const struct profile *p, struct fsdpck_error *err);

#endif
