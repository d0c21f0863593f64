/* SPDX-License-Identifier: Apache-2.0 */
/* The gradients of one step: micro-batches forward and backward, reduced over ranks. */
#ifndef TRAIN_STEP_H
#define TRAIN_STEP_H

#include "rank/rank.h"

/* The micro-batches of one rank in a wave. If another rank has more (nturns), this rank takes part in their gathers
 * without computing. */
struct packet {
    size_t first, end, nturns;
};

size_t step_npackets(const struct step_plan *plan, size_t per);
/* per: micro-batches of a packet; wave: its first packet. */
struct packet step_packet(const struct step_plan *plan, size_t per, size_t wave, uint32_t rank);
/* Zeroes the slices of the rank in a contribution. */
void step_clean(const struct rank *r, float *contribution);

/* Computes the gradients of step r->step into r->own, reduced over all packets, and the loss of the whole batch. */
int rank_gradients(struct rank *r, const struct step_plan *plan, double *loss, struct fsdpck_error *err);
/* Parts of rank_gradients() for other users of micro-batches. step_fill() fills a batch, rank_fill() that of
 * r->compute; rank_fold() adds the ranks' parts to *sum in global order. */
void step_fill(struct batch *b, const struct data *data, const struct step_plan *plan, const struct micro_batch *micro,
               uint64_t step);
int rank_fill(struct rank *r, const struct data *data, const struct step_plan *plan, const struct micro_batch *micro,
              struct fsdpck_error *err);
int rank_fold(struct rank *r, double mine, uint32_t nparts, double *sum, struct fsdpck_error *err);
/* The same, where the rank has part `number` of the sum; a number beyond nparts: none. */
int rank_fold_part(struct rank *r, uint32_t number, double mine, uint32_t nparts, double *sum,
                   struct fsdpck_error *err);

#endif
