/* SPDX-License-Identifier: Apache-2.0 */
/* The work of single experts (experts.c), for the files that decide whose rows they work on. */
#ifndef TRAIN_EXPERTS_IMPL_H
#define TRAIN_EXPERTS_IMPL_H

#include "model/compute_impl.h"

/* Few shapes of products should occur: each is prepared once. The rows of an expert are padded to a multiple. */
enum { EXPERT_ROWS = 8 };

/* Rows that experts work on, in the order of the experts: those of this rank's micro-batch, or of another rank's. */
struct expert_work {
    const struct routed *routed;          /* starts, choices, weights */
    void *rows;                           /* (…, hidden) outputs, and their gradients */
    void *x;                              /* another rank's: their inputs, for the backward pass. NULL: this rank's,
                                             whose rows are gathered from c->h and c->dx */
    bool arrived;                         /* another rank's: `rows` holds the inputs, or the gradients of outputs */
    void *gate, *up, *s_gate_up, *s_down; /* as in struct block */
    float *dweights;                      /* by choice */
};

/* The rows of this rank's micro-batch in a block. */
struct expert_work experts_work(const struct compute *c, int64_t number);
/* One expert of a block. wants_y: else only what the backward pass needs. The backward pass replaces the gradients of
 * its outputs by those of its inputs if `through`. */
void experts_forward_one(struct compute *c, const struct expert_work *w, int64_t number, int64_t expert, bool wants_y);
void experts_backward_one(struct compute *c, const struct expert_work *w, int64_t number, int64_t expert, bool through);

#endif
