/* SPDX-License-Identifier: Apache-2.0 */
/* The memory and the traffic of a rank, from the tables of a job. */
#ifndef TRAIN_PLAN_H
#define TRAIN_PLAN_H

#include "rank/memory.h"

/* train_plan of an open job that computes so. device: its sizes there where memory is the device's own; else NULL. */
int job_plan(const struct job *job, const struct compute *c, const struct memory_sizes *device, struct train_plan *out,
             struct fsdpck_error *err);

#endif
