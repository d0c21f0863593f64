/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a job from a config. Refuses everything that can be refused before the ranks are forked. */
#ifndef TRAIN_OPEN_H
#define TRAIN_OPEN_H

#include "rank/job.h"

/* note: where notes of libfsdpck go; NULL for none. */
int job_open(const struct train_config *config, const struct train_options *opt, struct job *out,
             struct fsdpck_error *err);
void job_close(struct job *job);

#endif
