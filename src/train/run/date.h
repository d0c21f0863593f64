/* SPDX-License-Identifier: Apache-2.0 */
/* The date that the chat template shows in the data and samples of a run, if it asks for one. It stays the same for
 * the whole run, also when it is resumed. */
#ifndef TRAIN_DATE_H
#define TRAIN_DATE_H

#include "rank/rank.h"

enum { DATE_NBYTES = 12 };

/* data.date; else that of the checkpoint that the run goes on from, of output_dir's cache, or today. */
int date_choose(const struct train_config *config, const struct train_options *opt, char date[DATE_NBYTES],
                struct fsdpck_error *err);
/* For the next start, until there is a checkpoint. */
int date_keep(const struct job *job, struct fsdpck_error *err);

#endif
