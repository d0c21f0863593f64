/* SPDX-License-Identifier: Apache-2.0 */
/* Causal attention in tiles (Dao 2023, "FlashAttention-2"): softmax(scale · Q·Kᵀ)·V with a running maximum and sum. No
 * T×T matrix is ever stored. Documents packed in one row do not see each other. The number of query heads is a
 * multiple of the number of key heads (grouped-query attention).
 *
 * A head may have a sink (Xiao et al. 2023; gpt-oss): one more score in each row's softmax, whose value is zero. It
 * takes a share of the weights, so that those of the keys add up to less than 1. */
#ifndef KERNELS_ATTENTION_H
#define KERNELS_ATTENTION_H

#include <kernels/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Table of the documents in the form that a device needs. attention_table fills it, and all calls on the same
 * documents use it. All zeros on a device that needs none. */
struct kern_attention_table {
    void *data;    /* device memory: attention_table_bytes, aligned to 64 */
    int64_t ntile; /* tiles of tokens, rounded up; calls of one shape with equal ntile launch the same grids, also for
                      other documents */
};

/* Shape of a call. Documents are ranges of the ntok tokens: document d is tokens cu_seqlens[d] … cu_seqlens[d+1]-1.
 * Token i sees the tokens j of its own document with i - window < j ≤ i, unless `full` or `nkeys` say otherwise. */
struct kern_attention_shape {
    int64_t ntok, nhead, nkv, head_dim;
    const int64_t *cu_seqlens; /* (ndoc + 1), on the host, from 0 to ntok, ascending; empty documents allowed */
    int64_t ndoc;
    int64_t window;                    /* tokens that a query sees, itself included; 0: all */
    float scale;                       /* mostly 1/√head_dim */
    struct kern_attention_table table; /* made from the same documents */
    struct kern_cmat sinks;            /* (nhead), pitch ignored: scores that are not scaled; data NULL: none */
    bool full;                         /* not causal: a token sees its whole document. Without a window, like: */
    int64_t nkeys; /* a document's tokens from this one on are padding, which nobody sees; 0: there is none */
};

struct kern_attention {
    struct kern_attention_shape shape;
    struct kern_cmat q;    /* (ntok, nhead · head_dim) */
    struct kern_cmat k, v; /* (ntok, nkv · head_dim) */
    struct kern_mat o;     /* (ntok, nhead · head_dim); may not overlap k or v; may be q */
    float *lse;    /* (nhead, ntok): log of each row's sum of exponents, with the sink's; needed by the backward; NULL:
                      not wanted */
    void *scratch; /* as many bytes as attention_scratch says, aligned to 64 */
};

struct kern_attention_grad {
    struct kern_attention_shape shape;
    struct kern_cmat q, k, v, o, d_o; /* as in the forward; d_o as o */
    const float *lse;
    struct kern_mat dq, dk,
        dv;        /* written; shapes of q, k, v. dq may share the view of d_o, o or q; dk and dv overlap nothing */
    void *scratch; /* as many bytes as attention_grad_scratch says, aligned to 64 */
    float *dsinks; /* (nhead), added to: -Σ exp(sink - lse)·(d_o·o) over tokens; NULL: not wanted */
};

typedef void kern_attention_fn(struct kern_stream *, const struct kern_attention *);
typedef void kern_attention_grad_fn(struct kern_stream *, const struct kern_attention_grad *);
/* Bytes of scratch. They suffice for every call with at most as many tokens and documents; cu_seqlens is not read. On
 * the CPU they depend on the number of threads of the stream. A device ignores the stream, which may belong to another
 * device (when a run is only planned). */
typedef size_t kern_attention_scratch_fn(const struct kern_stream *, const struct kern_attention_shape *);
/* Enqueues the filling of shape->table. The caller provides its data. Of shape only ntok, ndoc and cu_seqlens are
 * read. */
typedef void kern_attention_table_fn(struct kern_stream *, struct kern_attention_shape *shape);

#ifdef __cplusplus
}
#endif
#endif
