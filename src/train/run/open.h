/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a job from a config. Detects every error that can be detected before the ranks are forked. */
#ifndef TRAIN_OPEN_H
#define TRAIN_OPEN_H

#include "rank/job.h"

/* note: receives the notes of libfsdpck; may be NULL. */
int job_open(const struct train_config *config, const struct train_options *opt, struct job *out,
             struct fsdpck_error *err);
void job_close(struct job *job);

#endif
