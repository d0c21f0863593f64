/* SPDX-License-Identifier: Apache-2.0 */
/* Decoding, one token at a time: matrix-vector products, and the attention of one token over all tokens before it.
 * Both are bound by memory bandwidth: every weight is read once and widened in registers. Sums are fp32, in an order
 * that only the shape determines. */
#ifndef KERNELS_DECODE_H
#define KERNELS_DECODE_H

#include <kernels/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One matrix of a call: y = alpha · W·x + B·s + bias + add, rounded once. */
struct kern_gemv_part {
    int64_t n;
    struct kern_cmat w;    /* (n, k), as torch.nn.Linear stores it */
    float alpha;           /* 0 in a zeroed struct: set it */
    int64_t r;             /* 0: no low-rank part */
    const float *s;        /* (r) */
    struct kern_cmat b;    /* (n, r) */
    struct kern_cmat bias; /* (n) or none, pitch ignored */
    struct kern_cmat add;  /* (n) or none, pitch ignored; may be y */
    struct kern_mat y;     /* (n), pitch ignored; may not overlap x or another part's operands */
};

/* Matrices with a common x: layers with the same input, whose work the threads share out in one call. */
struct kern_gemv {
    int64_t k;
    struct kern_cmat x;                 /* (k), pitch ignored */
    const struct kern_gemv_part *parts; /* (nparts) borrowed during the call */
    const struct kern_gemv *also; /* (nalso) products of the same shape with other vectors, which have none themselves:
                                     weights that are the same are read once. NULL: none */
    int nalso;
    int nparts;
};
typedef void kern_gemv_fn(struct kern_stream *, const struct kern_gemv *);

/* Keys and values that lie in pages of nrow rows each: row i is row (first + i) % nrow of page (first + i) / nrow. */
struct kern_pages {
    void *const *list; /* where the pages are, in host memory; borrowed during the call. NULL: there are none */
    int64_t nrow, first;
    size_t k_at, v_at; /* bytes from the start of a page to its keys, and to its values */
};

/* o = softmax(scale · q·Kᵀ)·V for one token. Query heads share key heads as in kern_attention. For a sliding window
 * the caller passes only the keys inside it. */
struct kern_attention_one {
    int64_t nkeys, nhead, nkv, head_dim; /* nkeys ≥ 1, the token's own included */
    float scale;
    struct kern_cmat q;      /* (nhead · head_dim), pitch ignored */
    struct kern_cmat k, v;   /* (nkeys, nkv · head_dim); with pages, data is NULL */
    struct kern_mat o;       /* (nhead · head_dim), pitch ignored; may be q */
    struct kern_cmat sinks;  /* (nhead), as in kern_attention; data NULL: none */
    struct kern_pages pages; /* the CPU only: the same bits as in one piece */
};
typedef void kern_attention_one_fn(struct kern_stream *, const struct kern_attention_one *);

#ifdef __cplusplus
}
#endif
#endif
