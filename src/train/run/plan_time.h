/* SPDX-License-Identifier: Apache-2.0 */
/* Predicts the seconds of a step from the rates of a machine. */
#ifndef TRAIN_PLAN_TIME_H
#define TRAIN_PLAN_TIME_H

#include "price/rates.h"
#include "rank/job.h"

struct rank_device;

/* nrecomputed: blocks that are recomputed, of those that the config leaves open the first ones. Sets the times of *out;
 * its bytes a step must be set. Runs the code of a micro-batch on paper: reads no weights, and reserves addresses, but
 * no memory. */
int plan_time(const struct job *job, const struct rank_device *where, int64_t nrecomputed, const struct rates *rates,
              struct train_plan *out, struct fsdpck_error *err);

#endif
