/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a job from a config. Detects every error that can be detected before the ranks are forked. */
#ifndef TRAIN_OPEN_H
#define TRAIN_OPEN_H

#include "rank/job.h"

/* note: receives the notes of libfsdpck; may be NULL. */
int job_open(const struct train_config *config, const struct train_options *opt, struct job *out,
             struct fsdpck_error *err);
void job_close(struct job *job);
/* Makes the job one of nranks local ranks, which have not started. On failure it is unchanged. */
int job_set_nranks(struct job *job, uint32_t nranks, struct fsdpck_error *err);
/* Gives the job a config, borrowed, that differs in the keys of enum train_automatic and in
 * fsdp.activation_checkpointing. Its ranks have not started. On failure it is unchanged. */
int job_set_config(struct job *job, const struct train_config *config, struct fsdpck_error *err);

#endif
