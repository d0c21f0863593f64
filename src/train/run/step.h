/* SPDX-License-Identifier: Apache-2.0 */
/* The gradients of one step: micro-batches forward and backward, reduced over ranks. */
#ifndef TRAIN_STEP_H
#define TRAIN_STEP_H

#include "rank/rank.h"

/* Computes the gradients of step r->step into r->own, reduced over all packets, and the loss of the whole batch. */
int rank_gradients(struct rank *r, const struct step_plan *plan, double *loss, struct fsdpck_error *err);
/* Parts of rank_gradients() for other users of micro-batches. step_fill() fills a batch, rank_fill() that of
 * r->compute; rank_fold() adds the ranks' parts to *sum in global order. */
void step_fill(struct batch *b, const struct data *data, const struct step_plan *plan, const struct micro_batch *micro,
               uint64_t step);
void rank_fill(struct rank *r, const struct data *data, const struct step_plan *plan, const struct micro_batch *micro);
int rank_fold(struct rank *r, double mine, uint32_t nparts, double *sum, struct fsdpck_error *err);

#endif
