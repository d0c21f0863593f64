/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a micro-batch that depend on the kind of model. micro.c runs them; compute.c has their memory. */
#ifndef TRAIN_COMPUTE_PARTS_H
#define TRAIN_COMPUTE_PARTS_H

#include <fsdpck/error.h>
#include <stdbool.h>
#include <stdint.h>

struct bump;
struct compute;

/* Parts enqueue work, in this order. c->dtype is theirs to set. */
struct compute_parts {
    /* Tables of its own, in host memory; NULL: none. close() also follows a failure. */
    int (*open)(struct compute *c, struct fsdpck_error *err);
    void (*close)(struct compute *c);
    /* Buffers on the device, and in host memory: for the largest micro-batch, and the recomputed blocks as chosen. */
    void (*alloc)(struct compute *c, struct bump *v);
    void (*alloc_host)(struct compute *c, struct bump *v);
    /* Once, when the buffers are there; NULL: nothing. */
    int (*start)(struct compute *c, struct fsdpck_error *err);

    /* Copies c->batch to where kernels read it. */
    int (*send)(struct compute *c, struct fsdpck_error *err);
    void (*first)(struct compute *c); /* up to the first block */
    void (*block)(struct compute *c, int64_t number);
    void (*norm)(struct compute *c); /* after the last block; NULL: the loss comes with it */
    /* Into c->loss_sum; with the gradient that norm_backward() begins with, if it is wanted. */
    int (*loss)(struct compute *c, bool wants_gradient, struct fsdpck_error *err);
    /* When all has run: what is wanted besides the loss. NULL: nothing. */
    int (*take)(struct compute *c, struct fsdpck_error *err);

    void (*norm_backward)(struct compute *c);
    void (*recompute)(struct compute *c, int64_t number);
    void (*block_backward)(struct compute *c, int64_t number);
    void (*first_backward)(struct compute *c); /* only if something in its group trains */
};

extern const struct compute_parts decoder_parts, flux2_parts;

#endif
