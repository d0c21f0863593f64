/* SPDX-License-Identifier: Apache-2.0 */
/* The memory and the traffic of a rank, from the tables of a job. */
#ifndef TRAIN_PLAN_H
#define TRAIN_PLAN_H

#include "price/rates.h"
#include "rank/memory.h"

/* train_plan() for an open job. sizes: in the memory of the device, where that is apart. */
int job_plan(const struct job *job, const struct compute *c, const struct rank_device *where,
             const struct memory_sizes *sizes, struct train_plan *out, struct fsdpck_error *err);
/* train_plan() for an open job, whose ranks have not started. rates: NULL: no times are predicted. */
int plan_make(const struct job *job, const struct rates *rates, struct train_plan *out, struct fsdpck_error *err);
/* Adds to a plan what the ranks of a run on pictures encode before they train, and the memory that this takes. */
int plan_encoding(const struct job *job, struct train_plan *out, struct fsdpck_error *err);

#endif
