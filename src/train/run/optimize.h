/* SPDX-License-Identifier: Apache-2.0 */
/* The norm of a step's gradients, and the update of the parameters. */
#ifndef TRAIN_OPTIMIZE_H
#define TRAIN_OPTIMIZE_H

#include "rank/rank.h"

/* Requests of the user, handled between steps. */
struct asked {
    bool stop, save, sample;
};
/* The global norm, the same on every rank; NaN if a gradient is not finite. *asked: in, requests to this rank; out, to
 * any rank. */
int rank_norm(struct rank *r, double *norm, struct asked *asked, struct fsdpck_error *err);
int rank_update(struct rank *r, double norm, double lr, struct fsdpck_error *err);
/* Name of the first tensor whose gradient is not finite, or "loss". Collective. */
int rank_find_nonfinite(struct rank *r, const char **name, struct fsdpck_error *err);

#endif
