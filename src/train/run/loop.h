/* SPDX-License-Identifier: Apache-2.0 */
/* The main function of a rank: load, train, save, end. */
#ifndef TRAIN_LOOP_H
#define TRAIN_LOOP_H

#include "rank/rank.h"
#include "run/results.h"

/* resume is the checkpoint to resume from, or NULL. */
int loop_run(struct rank *r, const char *resume, struct loop_results *results, struct fsdpck_error *err);

#endif
