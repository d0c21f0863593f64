/* SPDX-License-Identifier: Apache-2.0 */
/* Checks before step 0 that all ranks have the same run and see the same output_dir. */
#ifndef TRAIN_AGREE_H
#define TRAIN_AGREE_H

#include "rank/rank.h"

/* Collective. resume: the checkpoint from which this rank will resume, or NULL. */
int agree(struct rank *r, const char *resume, struct fsdpck_error *err);

#endif
