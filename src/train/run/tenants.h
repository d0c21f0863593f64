/* SPDX-License-Identifier: Apache-2.0 */
/* A run of several adapters on one base, in the process of the supervisor. */
#ifndef TRAIN_RUN_TENANTS_H
#define TRAIN_RUN_TENANTS_H

#include "rank/job.h"

/* train_run() for a config with tenants. *joined: the ranks were started and can communicate. */
int tenants_run(const struct train_config *config, const struct train_options *opt, struct train_result *result,
                bool *joined, struct fsdpck_error *err);

#endif
