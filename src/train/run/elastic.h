/* SPDX-License-Identifier: Apache-2.0 */
/* Runs ranks on one host, and goes on with those that are left after some were lost. */
#ifndef TRAIN_ELASTIC_H
#define TRAIN_ELASTIC_H

#include "rank/job.h"

/* As supervise(), for train_options.elastic_nranks. Starts the ranks again from the newest state, in memory or on disk,
 * and again with all ranks after the next checkpoint. A rank that fails by itself ends the run. */
int elastic_run(struct job *job, const char *resume, struct train_result *result, struct fsdpck_error *err);

#endif
