/* SPDX-License-Identifier: Apache-2.0 */
/* Internals of generation, shared by the files of one sequence and of several at once. */
#ifndef TRAIN_DECODE_IMPL_H
#define TRAIN_DECODE_IMPL_H

#include <kernels/decode.h>

#include "model/compute_impl.h"
#include "model/decode.h"
#include "model/kv.h"

struct decode {
    struct compute c;                /* a private view: parameters and stream of `from`, activations of this struct */
    struct kern_buffer memory, host; /* device memory; pinned memory for copies to and from the device */
    int64_t room, most;              /* capacity for a prompt; capacity in total */
    struct kv kv;                    /* the cache; ntok: tokens in it */
    size_t *k_at, *v_at;             /* (nlayer) where keys and values are in a page; of a pool: NULL */
    void *k, *v;                     /* of a pool: (room, nkv · head_dim) of the prompt in one layer */
    void *x, *x2, *h;                /* (room, hidden) */
    void *q, *o;                     /* (room, nhead · head_dim) */
    void *gate, *up;                 /* (room, inner), or of one expert */
    struct routed routed;            /* of a mixture of experts */
    void *s;                         /* (room, Σ r), or of one expert */
    float *s_one;                    /* (Σ r) */
    float *logits;                   /* (nvocab) */
    float *seen;                     /* (nvocab) copy on the host */
};

/* A matrix-vector product for layers that share their input, with what it points to. */
struct decode_gemv {
    struct kern_gemv g;
    struct kern_gemv_part parts[BUNDLE];
    struct kern_cmat bias[BUNDLE], sum[BUNDLE];
};
/* Prepares y[i] = x·Wᵀ + bias + adapter (+ add) of one token; computes S of the adapters. like: NULL, or the same of
 * another sequence on the same base, whose weights are taken: they may be dequantized. */
void decode_gemv(struct decode *d, const struct linear *const *layers, int n, const void *x, const void *add,
                 const struct kern_mat *y, const struct decode_gemv *like, struct decode_gemv *out);
/* Where the keys and the values of the batch's tokens in layer `number` are computed. */
struct decode_new_rows {
    void *k, *v;
};
struct decode_new_rows decode_new_rows(const struct decode *d, int64_t number);
/* Sets positions, and copies the batch to where kernels read it. */
void decode_send(struct decode *d);
/* RoPE. */
void decode_turn(struct compute *c, void *x, int64_t nhead);
/* Attention of layer `number`, to the cache. */
void decode_attend(struct decode *d, int64_t number);
/* Rows [first, first + n) of the routing, which are those of an expert. */
void decode_expert(struct decode *d, const struct layer *l, int64_t expert, int64_t first, int64_t n);

#endif
