/* SPDX-License-Identifier: Apache-2.0 */
/* The gradients of one step: micro-batches forward and backward, reduced over ranks. */
#ifndef TRAIN_STEP_H
#define TRAIN_STEP_H

#include "rank/rank.h"

/* Gradients of step r->step in r->own, reduced over all packets; the loss is that of the whole batch. */
int rank_gradients(struct rank *r, const struct step_plan *plan, double *loss, struct fsdpck_error *err);
/* The same for others who compute micro-batches: what lies in r->compute->batch; every rank's part, added in global
 * order to *sum. */
void rank_fill(struct rank *r, const struct data *data, const struct step_plan *plan, const struct micro_batch *micro);
int rank_fold(struct rank *r, double mine, uint32_t nparts, double *sum, struct fsdpck_error *err);

#endif
