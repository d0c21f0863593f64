/* SPDX-License-Identifier: Apache-2.0 */
/* Forward and backward pass of one micro-batch, written with the table of kernels. Reads parameters from one piece of
 * memory, regardless of who owns the shards; adds gradients to another. Kernels use only device memory, which the host
 * may not be able to read. Knows nothing of ranks, files or steps. */
#ifndef TRAIN_COMPUTE_H
#define TRAIN_COMPUTE_H

#include <fsdpck/error.h>
#include <kernels/experts.h>
#include <kernels/image.h>
#include <kernels/loss.h>
#include <kernels/memory.h>
#include <kernels/ops.h>

#include "model/layout.h"

struct compute_parts; /* model/compute_parts.h */
struct expert_owners; /* model/expert_exchange.h */
struct expert_head;   /* model/expert_exchange.c */
struct flux2_train;   /* model/flux2_train.c */

/* The routing of a block's T tokens to its experts (kernels/experts.h). */
struct routed {
    float *logits, *weights; /* (T, nexperts); (T, top_k) */
    int32_t *experts, *rows; /* (T, top_k) */
    int32_t *choices;        /* (experts_all()) */
    void *s;                 /* (T, router_rank) S of the router's adapter */
    int64_t *starts;         /* (nexperts + 1) in host memory */
};

/* The expert of a block that every token shares. */
struct shared {
    float *logits, *weights;      /* (T) */
    void *gate, *up;              /* (T, shared_inner) */
    void *s, *s_gate_up, *s_down; /* of the adapters: of its weight, and as in a dense block */
};

/* Rows of other ranks for this rank's experts, and what it sends beside its own rows (model/expert_exchange.c). */
struct expert_inbox {
    int64_t nrow; /* for so many rows there is room */
    struct expert_head *head, *head_out;
    struct routed routed; /* starts, choices and weights */
    int64_t *starts_out;
    float *weights_out, *dweights;
    void *rows, *x, *x_out; /* (…, hidden) */
    void *gate, *up, *s_gate_up, *s_down;
};

/* How a micro-batch's tokens of all layers are spread over the experts (struct kern_expert_load). */
struct balance {
    bool counts;            /* a micro-batch that is trained on is in its forward pass */
    float *choices, *probs; /* (nexperts), adjacent */
    float *slopes, *scratch;
};

/* Activations of a block that its backward pass needs. Pointers to void have the dtype of the block's group. */
struct block {
    enum train_recompute checkpointing;     /* as the config has it */
    bool recomputed;                        /* shares all buffers but x with other such blocks */
    void *x, *x2;                           /* (T, hidden): the input; after attention */
    float *rstd1, *rstd2;                   /* (T) */
    void *q, *k, *v, *o;                    /* (T, heads · head_dim), after RoPE */
    void *q_raw, *k_raw;                    /* before the q/k norms; equal to q and k without such norms */
    float *rstd_q, *rstd_k;                 /* (T, heads) */
    float *lse;                             /* (heads, T) */
    struct shared shared;                   /* of a mixture of experts that has one */
    struct routed routed;                   /* of a mixture of experts */
    void *gate, *up;                        /* (T, inner); of a mixture of experts (experts_all(), expert_inner) */
    void *s_qkv, *s_o, *s_gate_up, *s_down; /* S = scale·drop(x)·Aᵀ, (T, Σ r) over the layers with a common x; of
                                               experts (rows, Σ r), each at its first row times expert_rank */
};

/* A picture that FLUX.2 is trained on, in host memory. The caller fills it; latents and noise are overwritten. */
struct picture {
    int64_t height, width;  /* latent pixels */
    float *latents, *noise; /* (height · width, nchannel) */
    float *text;            /* (flux2.ntext, text_width) */
    float sigma, guidance;  /* how much noise, from 0 to 1; read by a model that is guided */
    float weight;           /* of its loss */
};

/* A micro-batch. The caller fills it, in host memory. Padded to row_unit of the device. */
struct batch {
    int64_t ntok, ndocs;
    int64_t nreal;                      /* set by compute: ntok without the padding */
    struct kern_rng_offset *rng_offset; /* index of the step, and of this micro-batch's first token in it */
    float grad_scale;                   /* 1 / supervised tokens of the step */
    float share;                        /* 1 / micro-batches of the step */
    int32_t *ids, *positions, *targets; /* (ntok); target -1: not supervised */
    int64_t
        nrow; /* set by compute: number of supervised tokens, and of others that pad them to a multiple of row_unit */
    int32_t *rows, *row_targets; /* (nrow) set by compute: their indices and targets */
    float *weights;              /* (ntok) factors of the tokens' losses; used if compute.weighing.on */
    float *losses; /* (ntok) -ln p of each token's target, without its weight; set by compute if compute.weighing.on */
    float *row_weights, *row_losses;       /* (nrow) the same by row; set by compute */
    int64_t *cu_seqlens;                   /* (ndocs + 1) */
    struct picture picture;                /* of FLUX.2, in place of tokens */
    struct kern_attention_table documents; /* set by compute */
    int64_t nkeys; /* a document's tokens from this one on are padding, which no token sees; 0: there is none */
};

/* The part of a batch that kernels read, in device memory. */
struct batch_copy {
    int32_t *ids, *positions, *targets, *rows, *row_targets; /* (ntok) */
    float *weights, *row_weights;                            /* (ntok) */
    struct kern_rng_offset *rng_offset;
};

/* The device to compute on. */
struct compute_device {
    const struct kern_device *device;
    int index;
    unsigned nthreads; /* threads for CPU kernels */
};

/* The current address of a group's parameters: data[0] is byte `at` of layout.value_at. */
struct compute_group_data {
    unsigned char *data;
    size_t at;
};

/* For losses that are not the mean of -ln p over the supervised tokens of a step. */
struct compute_weighing {
    bool on; /* gradients are weighted (batch.weights), and batch.losses are wanted */
    /* Called between forward and backward pass with batch.losses set; sets batch.weights of the tokens with a target.
     * by_token: a token's weight depends on its own loss only. Then it is called several times, and only tokens that
     * precede the next call count; the losses of later ones are not set yet. NULL: the caller has set them. */
    void (*weigh)(void *ctx, struct batch *b);
    bool by_token;
    void *ctx;
};

/* The use of a group by a pass. */
struct compute_use {
    uint32_t group;
    bool completes; /* the gradients of the group for the micro-batch */
};

struct compute {
    const struct model *m;
    const struct compute_parts *parts; /* model/compute_parts.h */
    const struct layout *l;
    const struct layout *whole;   /* what the hooks gather: l, or the layout of several computations that are trained
                                     together */
    const struct compute *beside; /* NULL: alone; else the pool, the stream and group_data are borrowed from this one */
    const struct kern_device *device;
    struct kern_pool *pool;
    int index;
    struct kern_stream *stream;
    size_t nbytes;           /* number of bytes of device memory needed */
    struct kern_buffer host; /* pinned memory: the batch, and the loss copied back */
    size_t ndocs;            /* capacity */
    int64_t ntok;            /* capacity */
    int64_t nrecomputed;     /* activation checkpointing: number of blocks that store only x */
    int64_t nchoices;        /* blocks of which compute_recompute() decides */
    float dropout;
    uint64_t seed;
    uint32_t group;           /* that is computed: of a block that is cut, only its parts */
    enum kern_dtype dtype;    /* dtype of activations and parameters of the group that is computed */
    enum kern_dtype widest;   /* the largest of any group: buffers that groups share have room for it */
    enum kern_dtype output;   /* dtype to which logits are rounded for the loss */
    float *grads;             /* layout.grad_at; borrowed */
    unsigned char *values;    /* layout.value_at of parameters that are not gathered; borrowed */
    struct compute_use *uses; /* (nuses) from compute_uses(); the forward pass has the first nforward */
    uint32_t nuses, nforward;
    struct compute_group_data *group_data; /* (ngroups) point into `values` until a hook changes them */
    struct batch batch;
    struct batch_copy on;
    struct compute_weighing weighing;
    double *loss_sum, *loss_back; /* loss of the micro-batch: in device memory; in pinned memory */
    struct block *blocks;         /* (nlayer) */
    int64_t *starts;              /* (nlayer, nexperts + 1) host memory for the blocks' routings */
    int64_t expert_rank;          /* the largest Σ r of an expert's layers that share an input */
    int64_t router_rank;          /* the largest r of a router */
    int64_t nweights;             /* elements of `weights` */
    float *cosines, *sines;       /* (ntok, head_dim/2) */
    void *x_last;                 /* after the last block */
    float *rstd_last;
    void *h, *dx, *dh;                  /* (T, hidden) */
    void *dq, *dk, *dv, *d_o;           /* (T, heads · head_dim) */
    void *act;                          /* (T, inner), or of one expert */
    void *expert_rows;                  /* (experts_all(), hidden) inputs, outputs and their gradients */
    void *expert_x;                     /* (experts_one(), hidden) the input of an expert anew */
    int64_t nowners;                    /* ranks of an expert group; 1: there are none */
    const struct expert_owners *owners; /* NULL: this rank computes all experts for its tokens. Borrowed */
    struct expert_inbox inbox;          /* with expert groups */
    struct fsdpck_error exchange_error; /* of the first exchange of tokens that failed */
    bool serves;                        /* has no micro-batch: compute_micros() computes for other ranks' tokens only */
    float *dweights, *dlogits;          /* (T, top_k); (T, nexperts) */
    struct balance balance;             /* if the load balancing loss is added */
    void *ds, *s_embed;                 /* (T, largest Σ r); (T, r) */
    void *weights;   /* dequantized weights of layers that share an input; NULL if none is quantized */
    void *a_joint;   /* (Σ r, hidden): A of adapters that share their input */
    float *da_joint; /* its gradient */
    void *b_one;     /* B of layers that share an input, copied out of those of all experts; else NULL */
    float *db_one;   /* the gradient of one of them */
    float *norms; /* DoRA: norms of the rows of W + scale·B·A, (layout.norms_nelem); the forward pass computes them */
    void *u, *dy; /* DoRA: (T, largest nout); (T, largest Σ nout of layers that share an input) */
    void *dropped;             /* DoRA with dropout: drop(x), (T, largest nin) */
    float *sums;               /* partial sums over tokens */
    float *loss;               /* (T) */
    void *attention, *head;    /* scratch */
    struct replays *replays;   /* NULL: kernels are not recorded */
    struct flux2_train *flux2; /* buffers of FLUX.2; NULL: it is a decoder. Owned */
};

/* ntok, ndocs: size of the largest micro-batch. Sets nbytes, the memory that compute_bind() needs. Call compute_bind()
 * before the first micro-batch. */
int compute_new(const struct model *m, const struct layout *l, const struct train_config *config, int64_t ntok,
                size_t ndocs, const struct compute_device *where, struct compute **out, struct fsdpck_error *err);
/* memory: nbytes of device memory, zero-filled, aligned to 64. memory, values and grads are borrowed. Computations
 * beside one other that have the same ntok, and never run at the same time, may share memory. */
int compute_bind(struct compute *c, void *memory, unsigned char *values, float *grads, struct fsdpck_error *err);
/* The same beside another computation, which has started on a device and outlives this one: with its device, threads,
 * stream and addresses of groups, and hooks that are called as for it. l: as its layout has the parameters
 * (model/layout_join.h), or, beside one that trains nothing, with adapters of its own (model/layout_beside.h). */
int compute_new_beside(const struct compute *other, const struct model *m, const struct layout *l,
                       const struct train_config *config, int64_t ntok, size_t ndocs, struct compute **out,
                       struct fsdpck_error *err);
/* Makes device, stream and parameters only, without buffers for micro-batches or gradients: for callers with their own
 * buffers. */
int compute_new_bare(const struct model *m, const struct layout *l, const struct train_config *config,
                     const struct compute_device *where, struct compute **out, struct fsdpck_error *err);
/* Call before compute_bind(). Recomputes nbytes for activation checkpointing of the first n blocks whose
 * activation_checkpointing is "auto", beside those for which it is "block". */
void compute_recompute(struct compute *c, int64_t n);
/* Rows [first, first + nrow) of a matrix, which are at `rows`: as they are, or dequantized into element `at` of
 * c->weights. */
struct kern_cmat compute_rows_of(struct compute *c, const struct param *p, const void *rows, int64_t first,
                                 int64_t nrow, int64_t at);
/* Sets the address of all parameters; hooks may change it later. */
void compute_set_values(struct compute *c, unsigned char *values);
/* Waits until the enqueued work has run, and returns its status. */
int compute_sync(struct compute *c, struct fsdpck_error *err);
void compute_free(struct compute *c); /* NULL does nothing */
/* compute calls before_group before it uses the parameters of a group, and after_group after the last use until the
 * next before_group. Forward: every group in order; a tied embedding again with the head. Backward: the blocks that
 * propagate a gradient, last first, then an embedding with an adapter, or FLUX.2's first group if it trains. The groups
 * of a block that is cut and recomputed come in both orders: all but the last, then all from the last one on. */
struct compute_hook {
    int (*before_group)(void *ctx, uint32_t group, struct fsdpck_error *err);
    void (*after_group)(void *ctx, uint32_t group);
    /* The gradients of the group for this micro-batch are complete. Called in the backward pass, once for each of its
     * groups; may be NULL. */
    int (*grads_ready)(void *ctx, uint32_t group, struct fsdpck_error *err);
    void *ctx;
};

/* The groups that a hook sees in compute_micro(), in order; the forward pass has the first *nforward uses. uses: NULL
 * to count. */
uint32_t compute_uses(const struct layout *l, uint32_t *nforward, struct compute_use *uses);
/* Runs forward and backward for c->batch. *loss is the sum over its supervised tokens (not scaled), and the
 * micro-batch's share of the load balancing loss in the same unit. Adds gradients to c->grads. */
int compute_micro(struct compute *c, const struct compute_hook *hook, double *loss, struct fsdpck_error *err);
/* The same for several computations beside one (compute_new_beside()), n > 0. A group is entered once for all of them.
 * Nothing of one depends on another. With expert groups, all ranks list the same computations in the same order; those
 * that have no micro-batch on a rank have `serves`. losses: (n), 0 of these */
int compute_micros(struct compute *const *all, size_t n, const struct compute_hook *hook, double *losses,
                   struct fsdpck_error *err);
/* Calls the hook as compute_micro() does, and computes only for the tokens of other ranks (model/expert_exchange.h):
 * for ranks that have no micro-batch but take part in collectives. */
int compute_skip(struct compute *c, const struct compute_hook *hook, struct fsdpck_error *err);
/* Runs the forward pass without dropout: sets *loss and changes nothing else. compute_loss_skip() is for it
 * what compute_skip() is for compute_micro(). compute_decode_skip() only calls the hook: it is for the passes of a
 * decoder (model/decode.h): their experts are all computed where the prompt is. */
int compute_loss(struct compute *c, const struct compute_hook *hook, double *loss, struct fsdpck_error *err);
int compute_loss_skip(struct compute *c, const struct compute_hook *hook, struct fsdpck_error *err);
int compute_decode_skip(struct compute *c, const struct compute_hook *hook, struct fsdpck_error *err);
/* Runs the forward pass up to the last norm, for what the hook takes out of blocks after each group. */
int compute_states(struct compute *c, const struct compute_hook *hook, struct fsdpck_error *err);
/* Runs the forward pass only; logits: (ntok, nvocab) in host memory. For tests and sampling. */
int compute_logits(struct compute *c, const struct compute_hook *hook, float *logits, struct fsdpck_error *err);

#endif
