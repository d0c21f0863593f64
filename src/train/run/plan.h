/* SPDX-License-Identifier: Apache-2.0 */
/* The memory and the traffic of a rank, from the tables of a job. */
#ifndef TRAIN_PLAN_H
#define TRAIN_PLAN_H

#include "rank/memory.h"

/* train_plan() for an open job. device: sizes in device memory; NULL if the kernels use host memory. */
int job_plan(const struct job *job, const struct compute *c, const struct memory_sizes *device, struct train_plan *out,
             struct fsdpck_error *err);

#endif
