/* SPDX-License-Identifier: Apache-2.0 */
/* The norm of a step's gradients, and the update of the parameters. */
#ifndef TRAIN_OPTIMIZE_H
#define TRAIN_OPTIMIZE_H

#include "rank/rank.h"

/* Of a run that is under way, at the boundary of a step. */
struct asked {
    bool stop, save, sample;
};
/* The global norm, the same on every rank; NaN where a gradient is not finite. *asked: of this rank; then of any. */
int rank_norm(struct rank *r, double *norm, struct asked *asked, struct fsdpck_error *err);
int rank_update(struct rank *r, double norm, double lr, struct fsdpck_error *err);
/* Name of the first tensor whose gradient is not finite, or "loss". Collective. */
int rank_find_nonfinite(struct rank *r, const char **name, struct fsdpck_error *err);

#endif
