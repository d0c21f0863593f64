/* SPDX-License-Identifier: Apache-2.0 */
/* The day that the chat template shows in a run's data and samples, where it asks for one: the same for as long as the run goes on. */
#ifndef TRAIN_DATE_H
#define TRAIN_DATE_H

#include "rank/rank.h"

enum { DATE_NBYTES = 12 };

/* data.date; else that of the checkpoint that the run goes on from, of output_dir's cache, or today. */
int date_choose(const struct train_config *config, const struct train_options *opt, char date[DATE_NBYTES], struct fsdpck_error *err);
/* For the next start, until there is a checkpoint. */
int date_keep(const struct job *job, struct fsdpck_error *err);

#endif
