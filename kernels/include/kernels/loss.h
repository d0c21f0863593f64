/* SPDX-License-Identifier: Apache-2.0 */
/* The head and the cross-entropy, by chunks of supervised rows: the logits of all tokens never exist, and tokens without a label cost nothing. */
#ifndef KERNELS_LOSS_H
#define KERNELS_LOSS_H

#include <kernels/gemm.h>
#include <kernels/stream.h>
#include <kernels/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* loss[i] = ln Σ exp(logits[i]) - logits[i][target[i]]; dlogits = (softmax - onehot) · grad_scale. A negative target: loss 0, gradient 0. */
struct kern_cross_entropy {
    int64_t nrow, ncol;
    struct kern_cmat logits; /* (nrow, ncol) */
    const int32_t *target;   /* (nrow), below ncol */
    float grad_scale;
    float *loss;             /* (nrow) */
    struct kern_mat dlogits; /* (nrow, ncol); may start where logits does, also as bf16 over fp32 at the same pitch in bytes; data NULL: not wanted */
};
typedef void kern_cross_entropy_fn(struct kern_stream *, const struct kern_cross_entropy *);

/* LoRA on the head: logits += scale · (drop(H)·Aᵀ)·Bᵀ. Its gradients are added to da and db (fp32). r = 0: none. */
struct kern_head_lora {
    int64_t r;
    float scale;
    struct kern_cmat a, b;       /* (r, d), (nvocab, r) */
    float *da, *db;              /* the same shapes, without gaps; needed if dh is */
    struct kern_dropout dropout; /* on H; token0 and width as kern_dropout says */
};

struct kern_head {
    int64_t ntok, d, nvocab;
    struct kern_cmat h;     /* (ntok, d): after the last norm */
    struct kern_cmat w;     /* (nvocab, d) */
    int64_t nrow;           /* rows that are supervised */
    const int32_t *rows;    /* (nrow) which they are, ascending; NULL: the first nrow rows. Must be NULL with dropout, whose numbers go by row */
    const int32_t *target;  /* (nrow) the token to be predicted there; negative: none after all */
    float grad_scale;       /* 1 / (supervised tokens of the whole global batch) */
    float *loss;            /* (nrow), not scaled */
    struct kern_mat dh;     /* (ntok, d), all of it written: 0 where nothing is supervised; data NULL: only the loss. May not overlap h */
    float *dw;              /* (nvocab, d) without gaps, added to; NULL: frozen */
    struct kern_head_lora lora;
    enum kern_dtype output;  /* the logits are rounded to this before the loss looks at them */
    enum kern_dtype compute; /* the logits' gradient and LoRA's thin products are rounded to this before they are multiplied */
    int64_t chunk;           /* rows at a time; part of the shape: other chunks may give dw other bits. 0: kern_head_chunk's */
    int64_t panel;           /* rows of W that a product of the input's gradient goes along at once, as part of the shape; 0: what a processor's cache wants */
    void *scratch;           /* kern_head_scratch bytes, aligned to 64 */
};

int64_t kern_head_chunk(int64_t nvocab);
size_t kern_head_scratch(const struct kern_head *head);
/* Built on the device's table: gather rows, product, cross-entropy, products, scatter. */
void kern_head_run(const struct kern_device *device, struct kern_stream *stream, const struct kern_head *head);

#ifdef __cplusplus
}
#endif
#endif
