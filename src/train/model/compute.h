/* SPDX-License-Identifier: Apache-2.0 */
/* Forward and backward pass of one micro-batch, written with the table of kernels. Reads parameters from one piece of
 * memory, whoever owns the shards; adds gradients to another. Kernels use device memory only, which the host may not
 * be able to read. Knows nothing of ranks, files or steps. */
#ifndef TRAIN_COMPUTE_H
#define TRAIN_COMPUTE_H

#include <fsdpck/error.h>
#include <kernels/loss.h>
#include <kernels/memory.h>
#include <kernels/ops.h>

#include "model/layout.h"

/* What a block keeps for its backward. Pointers to void are activations, in compute.dtype. */
struct block {
    void *x, *x2;           /* (T, hidden): what comes in; after attention */
    float *rstd1, *rstd2;   /* (T) */
    void *q, *k, *v, *o;    /* (T, heads · head_dim), turned */
    void *q_raw, *k_raw;    /* before their norms; the same as q and k where there are none */
    float *rstd_q, *rstd_k; /* (T, heads) */
    float *lse;             /* (heads, T) */
    void *gate, *up;        /* (T, inner) */
    void *s_qkv, *s_o, *s_gate_up, *s_down; /* S = scale·drop(x)·Aᵀ, (T, Σ r) of those that share x */
};

/* Filled by the caller, in memory of the host, and padded where the device has units of rows. */
struct batch {
    int64_t ntok, ndocs;
    struct kern_rng_offset *rng_offset; /* the step, and its tokens before this micro-batch */
    float grad_scale;           /* 1 / supervised tokens of the step */
    int32_t *ids, *positions, *targets; /* (ntok): targets -1 where there is none */
    int64_t nrow;               /* compute's own: tokens that the head sees */
    int32_t *rows, *row_targets; /* (nrow) compute's own: which, and their targets */
    int64_t *cu_seqlens;        /* (ndocs + 1) */
    struct kern_attention_table documents; /* compute's own */
};

/* What of it kernels read, on the device. */
struct batch_copy {
    int32_t *ids, *positions, *targets, *rows, *row_targets; /* (ntok) */
    struct kern_rng_offset *rng_offset;
};

/* Where it computes. */
struct compute_device {
    const struct kern_device *device;
    int index;
    unsigned nthreads; /* of kernels that run in line */
};

/* Where a group's parameters lie now: byte `at` of layout.value_at is data[0]. */
struct compute_group_data {
    unsigned char *data;
    size_t at;
};

struct compute {
    const struct model *m;
    const struct layout *l;
    const struct kern_device *device;
    struct kern_pool *pool;
    int index;
    struct kern_stream *stream;
    size_t nbytes;              /* of the device's memory that it wants */
    struct kern_buffer host;    /* pinned: the batch, and the loss on its way back */
    size_t ndocs;               /* room */
    int64_t ntok;               /* room */
    int64_t nrecomputed;        /* activation checkpointing: so many blocks, the first ones, keep x only */
    float dropout;
    uint64_t seed;
    enum kern_dtype dtype;      /* of activations: that of the parameters */
    enum kern_dtype output;     /* of logits, as the loss sees them */
    float *grads;               /* layout.grad_at; borrowed */
    uint32_t *uses, nuses, nforward; /* (nuses) compute_uses of it */
    struct compute_group_data *places; /* (ngroups) all of the `values` that compute_new was given, until a hook moves them */
    struct batch batch;
    struct batch_copy on;
    double *loss_sum, *loss_back; /* the micro-batch's: on the device; in pinned memory */
    struct block *blocks;       /* (nlayer); those that are recomputed share everything but x */
    float *cosines, *sines;     /* (ntok, head_dim/2) */
    void *x_last;               /* after the last block */
    float *rstd_last;
    void *h, *dx, *dh;          /* (T, hidden) */
    void *dq, *dk, *dv, *d_o;   /* (T, heads · head_dim) */
    void *act;                  /* (T, inner) */
    void *ds, *s_embed;         /* (T, largest Σ r); (T, r) */
    void *a_joint;              /* (Σ r, hidden): A of adapters that share their input */
    float *da_joint;            /* its gradient */
    float *norms;               /* DoRA: of rows of W + scale·B·A, (layout.norms_nelem); the forward makes them */
    void *u, *dy;               /* DoRA: (T, largest nout); (T, largest Σ nout of layers that share an input) */
    void *dropped;              /* DoRA with dropout: drop(x), (T, largest nin) */
    float *sums;                /* partial sums over tokens */
    float *loss;                /* (T) */
    void *attention, *head;     /* scratch */
    struct replays *replays;    /* NULL: everything is put on the stream piece by piece */
};

/* ntok, ndocs: room for the largest micro-batch. It knows then how much memory it wants (nbytes), and computes when it has got it. */
int compute_new(const struct model *m, const struct layout *l, const struct train_config *config, int64_t ntok, size_t ndocs, const struct compute_device *where,
                struct compute **out, struct fsdpck_error *err);
/* memory: nbytes of the device's, zero-filled, aligned to 64; it, values and grads are borrowed. */
int compute_place(struct compute *c, void *memory, unsigned char *values, float *grads, struct fsdpck_error *err);
/* Without room for a micro-batch or gradients: device, stream and parameters, for those who bring their own buffers. */
int compute_new_bare(const struct model *m, const struct layout *l, const struct train_config *config, const struct compute_device *where,
                     struct compute **out, struct fsdpck_error *err);
/* Before compute_place: nbytes is anew what it wants when the first n blocks are recomputed. */
void compute_recompute(struct compute *c, int64_t n);
/* Where all parameters are, until a hook moves them. */
void compute_set_values(struct compute *c, unsigned char *values);
/* All that was put on the stream has run, and how it went. */
int compute_sync(struct compute *c, struct fsdpck_error *err);
void compute_free(struct compute *c); /* NULL does nothing */
/* before_group is called with each group just before its parameters are used, after_group when they are used no more until the next such call. Forward: every
 * group in order, a tied embedding again with the head; backward: the layers that pass a gradient on, last first, then an embedding that is adapted. */
struct compute_hook {
    int (*before_group)(void *ctx, uint32_t group, struct fsdpck_error *err);
    void (*after_group)(void *ctx, uint32_t group);
    /* The group's gradients of this micro-batch are all there. In the backward, once a group that the backward comes through; may be NULL. */
    int (*grads_ready)(void *ctx, uint32_t group, struct fsdpck_error *err);
    void *ctx;
};

/* The groups that a hook sees in compute_micro, in order; *nforward of them before the backward. groups: NULL to count. */
uint32_t compute_uses(const struct model *m, const struct layout *l, uint32_t *nforward, uint32_t *groups);
/* c->batch through the model: *loss is the sum over its supervised tokens (not scaled); gradients are added to c->grads. */
int compute_micro(struct compute *c, const struct compute_hook *hook, double *loss, struct fsdpck_error *err);
/* What the hook would see of a micro-batch, without one: for ranks that only take part. */
int compute_skip(struct compute *c, const struct compute_hook *hook, struct fsdpck_error *err);
/* Forward only: the same *loss without dropout, and nothing else changes. Its own skip: the hook sees the groups of the forward. */
int compute_loss(struct compute *c, const struct compute_hook *hook, double *loss, struct fsdpck_error *err);
int compute_loss_skip(struct compute *c, const struct compute_hook *hook, struct fsdpck_error *err);
/* Forward only; logits: (ntok, nvocab), in memory of the host. For tests and sampling. */
int compute_logits(struct compute *c, const struct compute_hook *hook, float *logits, struct fsdpck_error *err);

#endif
