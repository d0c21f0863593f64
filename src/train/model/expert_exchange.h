/* SPDX-License-Identifier: Apache-2.0 */
/* Experts that are whole on ranks (fsdp.expert_parallel): the ranks of an expert group divide the experts of each block
 * among them, and each computes its own for the tokens of all. Rank number p of n has the experts [p·nexperts/n,
 * (p + 1)·nexperts/n). All ranks of a run take part in each exchange, also without a micro-batch. */
#ifndef TRAIN_EXPERT_EXCHANGE_H
#define TRAIN_EXPERT_EXCHANGE_H

#include "comm/trade.h"
#include "model/compute.h"

struct bump;

struct expert_owners {
    uint32_t n, number;  /* ranks of the group; the place of this one */
    uint32_t first;      /* the group's first rank of the run */
    float *const *grads; /* (n) gradient memory of each */
    int (*trade)(void *ctx, const struct comm_trade *trade, struct fsdpck_error *err);
    void *ctx;
};

/* The most bytes that a rank sends at once. nowners: ranks of a group; ntok: tokens of the largest micro-batch. */
size_t exchange_nbytes(const struct model *m, const struct layout *l, int64_t nowners, int64_t ntok);
/* Bytes that a rank receives in a micro-batch of ntok tokens that is trained on, if all experts are chosen alike. */
uint64_t exchange_micro_nbytes(const struct compute *c, int64_t ntok);
/* Allocates c->inbox; nothing without expert groups. */
void exchange_alloc(struct compute *c, struct bump *v, int64_t ntok);
/* The part of experts_forward() and experts_backward() that the experts of a block have: this rank's experts work for
 * the tokens of the whole group. A failure shows in exchange_status(). */
void exchange_forward(struct compute *c, int64_t number, bool wants_y);
void exchange_backward(struct compute *c, int64_t number, bool through);
/* The same for a rank without a micro-batch. */
void exchange_serve_forward(struct compute *c, int64_t number, bool wants_y);
void exchange_serve_backward(struct compute *c, int64_t number, bool through);
/* The first failure of an exchange: nothing was exchanged after it. */
int exchange_status(const struct compute *c, struct fsdpck_error *err);

#endif
