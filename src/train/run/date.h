/* SPDX-License-Identifier: Apache-2.0 */
/* The date that the chat template shows in the data and samples of a run, if it asks for one. It is constant for the
 * whole run, also across resumes. */
#ifndef TRAIN_DATE_H
#define TRAIN_DATE_H

#include "rank/rank.h"

enum { DATE_NBYTES = 12 };

/* Takes data.date; else the date of the checkpoint to resume from; else the date in output_dir's cache; else today. */
int date_choose(const struct train_config *config, const struct train_options *opt, char date[DATE_NBYTES],
                struct fsdpck_error *err);
/* Stores the date for the next start, which may find no checkpoint. */
int date_keep(const struct job *job, struct fsdpck_error *err);

#endif
