/* SPDX-License-Identifier: Apache-2.0 */
/* FLUX.2's part of a micro-batch that is trained on: one picture (compute.h). */
#ifndef TRAIN_FLUX2_TRAIN_H
#define TRAIN_FLUX2_TRAIN_H

#include <fsdpck/error.h>

struct bump;
struct compute;

int flux2_train_new(struct compute *c, struct fsdpck_error *err);
void flux2_train_free(struct compute *c);
/* Buffers on the device; host memory. */
void flux2_train_alloc(struct compute *c, struct bump *v);
void flux2_train_alloc_host(struct compute *c, struct bump *v);

/* Copies c->batch.picture to where kernels read it. */
int flux2_train_send(struct compute *c, struct fsdpck_error *err);
/* The parts of a forward pass, group by group. */
void flux2_train_first(struct compute *c);
void flux2_train_block(struct compute *c, int64_t number);
/* The prediction, the loss in c->loss_sum and, if wanted, its gradient. */
void flux2_train_loss(struct compute *c, bool wants_gradient);
/* Those of a backward pass. */
void flux2_train_end_backward(struct compute *c);
void flux2_train_recompute(struct compute *c, int64_t number);
void flux2_train_block_backward(struct compute *c, int64_t number, bool wants_dz);

#endif
