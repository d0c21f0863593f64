/* SPDX-License-Identifier: Apache-2.0 */
/* Causal attention in tiles (Dao 2023, "FlashAttention-2"): softmax(scale · Q·Kᵀ)·V with a running maximum and sum; no T×T matrix is ever stored. Documents
 * packed in one row do not see each other. The number of query heads is a multiple of the number of key heads (grouped-query attention). */
#ifndef KERNELS_ATTENTION_H
#define KERNELS_ATTENTION_H

#include <kernels/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a device wants to know of documents, for all calls on them: attention_table makes it. Zero on a device that wants nothing. */
struct kern_attention_table {
    void *data;    /* of the device: attention_table_bytes, aligned to 64 */
    int64_t ntile; /* what calls cut tokens into, rounded up: calls of one shape launch the same wherever it is the same, whatever else the table says */
};

/* Shape of a call. Documents are ranges of the ntok tokens: document d is tokens cu_seqlens[d] … cu_seqlens[d+1]-1. Token i sees the tokens j of its own
 * document with i - window < j ≤ i. */
struct kern_attention_shape {
    int64_t ntok, nhead, nkv, head_dim;
    const int64_t *cu_seqlens; /* (ndoc + 1), on the host, from 0 to ntok, ascending; empty documents allowed */
    int64_t ndoc;
    int64_t window; /* tokens seen, the own one included; 0: all */
    float scale;    /* 1/√head_dim mostly */
    struct kern_attention_table table; /* made of the same documents */
};

struct kern_attention {
    struct kern_attention_shape shape;
    struct kern_cmat q;    /* (ntok, nhead · head_dim) */
    struct kern_cmat k, v; /* (ntok, nkv · head_dim) */
    struct kern_mat o;     /* (ntok, nhead · head_dim); may not overlap k or v; may be q */
    float *lse;            /* (nhead, ntok): log of each row's sum of exponents; needed by the backward; NULL: not wanted */
    void *scratch;         /* what the table's attention_scratch says, aligned to 64 */
};

struct kern_attention_grad {
    struct kern_attention_shape shape;
    struct kern_cmat q, k, v, o, d_o; /* as in the forward; d_o as o */
    const float *lse;
    struct kern_mat dq, dk, dv; /* as q, k, v; written. dq may be d_o or o or q, if their views are the same; dk and dv overlap nothing */
    void *scratch;              /* what the table's attention_grad_scratch says, aligned to 64 */
};

typedef void kern_attention_fn(struct kern_stream *, const struct kern_attention *);
typedef void kern_attention_grad_fn(struct kern_stream *, const struct kern_attention_grad *);
/* Bytes of scratch, enough for any division of as many tokens or fewer among as many documents or fewer; cu_seqlens is not read. They depend on the rest of the
 * shape and, in line, on the stream's number of threads; a device's row does not look at the stream, which may be another's (a plan's). */
typedef size_t kern_attention_scratch_fn(const struct kern_stream *, const struct kern_attention_shape *);
/* shape->table of shape's documents, put on the stream; its data is the caller's. Of shape only ntok, ndoc and cu_seqlens are read. */
typedef void kern_attention_table_fn(struct kern_stream *, struct kern_attention_shape *shape);

#ifdef __cplusplus
}
#endif
#endif
