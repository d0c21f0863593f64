/* SPDX-License-Identifier: Apache-2.0 */
/* The output head and the cross-entropy, by chunks of supervised rows. The logits of all tokens are never stored at
 * once, and tokens without a label cost nothing. */
#ifndef KERNELS_LOSS_H
#define KERNELS_LOSS_H

#include <kernels/gemm.h>
#include <kernels/stream.h>
#include <kernels/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* loss[i] = ln Σ exp(logits[i]) - logits[i][target[i]]; dlogits = (softmax - onehot) · grad_scale · weight. A
 * negative target gives loss 0 and gradient 0. */
struct kern_cross_entropy {
    int64_t nrow, ncol;
    struct kern_cmat logits; /* (nrow, ncol) */
    const int32_t *target;   /* (nrow), below ncol */
    float grad_scale;
    float *loss;             /* (nrow) */
    struct kern_mat dlogits; /* (nrow, ncol); may start at logits' address, also as bf16 over fp32 with the same pitch
                                in bytes; data NULL: not computed */
    const float *weights;    /* (nrow) of any sign; NULL: all are 1 */
};
typedef void kern_cross_entropy_fn(struct kern_stream *, const struct kern_cross_entropy *);

/* LoRA on the head: logits += scale · (drop(H)·Aᵀ)·Bᵀ. Gradients are added to da and db (fp32). r = 0: no LoRA. */
struct kern_head_lora {
    int64_t r;
    float scale;
    struct kern_cmat a, b;       /* (r, d), (nvocab, r) */
    float *da, *db;              /* the same shapes, contiguous; required if dh is wanted */
    struct kern_dropout dropout; /* on H; token0 and width as in kern_dropout */
};

struct kern_head {
    int64_t ntok, d, nvocab;
    struct kern_cmat h;  /* (ntok, d): after the last norm */
    struct kern_cmat w;  /* (nvocab, d) */
    int64_t nrow;        /* number of supervised rows */
    const int32_t *rows; /* (nrow) their indices, ascending; NULL: the first nrow rows. Must be NULL with dropout, whose
                            random numbers are indexed by row */
    const int32_t *target; /* (nrow) the token to predict; negative: the row is skipped */
    float grad_scale;      /* 1 / (supervised tokens of the whole global batch) */
    const float *weights;  /* (nrow) factors of the rows' gradients; NULL: all are 1 */
    float *loss;           /* (nrow), neither scaled nor weighted */
    /* Called when the losses of rows [row, row + n) have been enqueued, before their gradients: it may enqueue or set
     * the weights of these rows. NULL: they are known. */
    void (*weigh)(void *ctx, int64_t row, int64_t n);
    void *ctx;
    struct kern_mat dh; /* (ntok, d); every row is written, unsupervised ones with 0; data NULL: only the loss is
                           computed. Must not overlap h */
    float *dw;          /* (nvocab, d) contiguous, added to; NULL: frozen */
    struct kern_head_lora lora;
    enum kern_dtype output; /* dtype that logits are rounded to before the loss */
    enum kern_dtype
        compute; /* dtype that gradients of logits, and the low-rank products, are rounded to before the next product */
    int64_t chunk; /* rows of a chunk. Part of the shape: another value may change bits of dw. 0: kern_head_chunk */
    int64_t panel; /* rows of W per block in dX = dY·W, part of the shape; 0: fits the processor's cache */
    void *scratch; /* kern_head_scratch bytes, aligned to 64 */
};

int64_t kern_head_chunk(int64_t nvocab);
size_t kern_head_scratch(const struct kern_head *head);
/* Composed of the device's operations: gather rows, product, cross-entropy, products, scatter. */
void kern_head_run(const struct kern_device *device, struct kern_stream *stream, const struct kern_head *head);

#ifdef __cplusplus
}
#endif
#endif
