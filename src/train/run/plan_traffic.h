/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes that ranks read of each other in a step, and the buffers for them. */
#ifndef TRAIN_PLAN_TRAFFIC_H
#define TRAIN_PLAN_TRAFFIC_H

#include "rank/job.h"

/* Fills …_step_nbytes, offload_written_nbytes, buffer_nbytes, kept_nbytes and exchange_nbytes of *out. separate_memory:
 * the ranks compute on devices; linked: which are linked. */
int plan_traffic(const struct job *job, bool separate_memory, bool linked, struct train_plan *out,
                 struct fsdpck_error *err);

#endif
