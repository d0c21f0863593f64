/* SPDX-License-Identifier: Apache-2.0 */
/* Operations of models that make pictures: of diffusion transformers (Peebles and Xie 2022, "DiT"; Esser et al. 2024)
 * and of the autoencoder between pixels and latents (Rombach et al. 2021). A picture is a matrix of (height · width,
 * channels), row by row. These operations are a table of their own, kern_device.images, which a device may lack. */
#ifndef KERNELS_IMAGE_H
#define KERNELS_IMAGE_H

#include <kernels/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* y = (x - mean)·rstd·(1 + scale) + shift, rstd = 1/√(variance + eps) over the ncol features of a row: LayerNorm (Ba et
 * al. 2016) without weights, modulated. */
struct kern_modulate {
    int64_t nrow, ncol;
    struct kern_cmat x;         /* (nrow, ncol) */
    const float *shift, *scale; /* (ncol) */
    float eps;
    struct kern_mat y; /* (nrow, ncol); may be x */
};
typedef void kern_modulate_fn(struct kern_stream *, const struct kern_modulate *);

/* With xh = (x - mean)·rstd and g = dy·(1 + scale): dx = rstd·(g - mean(g) - xh·mean(g·xh)). */
struct kern_modulate_grad {
    int64_t nrow, ncol;
    struct kern_cmat x, dy; /* (nrow, ncol) */
    const float *scale;     /* (ncol) */
    float eps;
    struct kern_cmat add; /* (nrow, ncol): dx += add (the residual's gradient); may be dx */
    struct kern_mat dx;   /* may be dy */
};
typedef void kern_modulate_grad_fn(struct kern_stream *, const struct kern_modulate_grad *);

/* y = add + gate·x, a gate for each feature. Without `add` it is the gradient of x from that of y. */
struct kern_gate {
    int64_t nrow, ncol;
    const float *gate;    /* (ncol) */
    struct kern_cmat x;   /* (nrow, ncol) */
    struct kern_cmat add; /* (nrow, ncol) or none */
    struct kern_mat y;    /* (nrow, ncol); may be x or add */
};
typedef void kern_gate_fn(struct kern_stream *, const struct kern_gate *);

/* y = x·σ(x). y may be x. */
typedef void kern_silu_fn(struct kern_stream *, struct kern_mat y, struct kern_cmat x, int64_t nrow, int64_t ncol);

/* The squared distance of a prediction from its target, and its gradient: loss[row] = factor·Σ (x - target)², dx =
 * 2·grad_factor·(x - target). */
struct kern_square_error {
    int64_t nrow, ncol;
    struct kern_cmat x, target; /* (nrow, ncol) */
    float factor, grad_factor;
    float *loss;        /* (nrow) */
    struct kern_mat dx; /* (nrow, ncol); data NULL: not wanted */
};
typedef void kern_square_error_fn(struct kern_stream *, const struct kern_square_error *);

/* A convolution with 3 × 3 taps and a bias. (One of 1 × 1 is a kern_gemm.) With stride 1 a picture is padded by
 * zeros on all sides and keeps its size. With stride 2 it is padded on the right and at the bottom only, as the
 * reference's autoencoder does, and y has half as many rows and columns: both are even then. */
struct kern_conv {
    int64_t height, width, nin, nout; /* height, width: of x */
    int64_t stride;                   /* 1 or 2 */
    struct kern_cmat x;               /* (height · width, nin), pitch nin */
    const void *weight;               /* (nout, nin, 3, 3) in the dtype of x */
    const float *bias;                /* (nout) */
    struct kern_mat y;                /* pitch nout */
    void *scratch;                    /* as many bytes as conv_scratch says, aligned to 64 */
};
typedef void kern_conv_fn(struct kern_stream *, const struct kern_conv *);
/* Of c, the sizes and the dtype of x are read. */
typedef size_t kern_conv_scratch_fn(struct kern_stream *, const struct kern_conv *c);

/* GroupNorm (Wu and He 2018): y = (x - mean)·rstd·gamma + beta, over all pixels of ngroup groups of consecutive
 * channels; then silu, if asked for. */
struct kern_group_norm {
    int64_t npixel, nchannel, ngroup;
    struct kern_cmat x;        /* (npixel, nchannel) */
    const float *gamma, *beta; /* (nchannel) */
    float eps;
    bool silu;
    struct kern_mat y; /* may be x */
    double *scratch;   /* kern_group_norm_scratch() doubles */
};
typedef void kern_group_norm_fn(struct kern_stream *, const struct kern_group_norm *);
static inline int64_t kern_group_norm_scratch(int64_t npixel, int64_t nchannel, int64_t ngroup)
{
    return 2 * ngroup * (kern_row_blocks(npixel) + 1) + nchannel;
}

/* Twice as many rows and columns: each pixel of x becomes four of y. x: (height · width, nchannel). */
typedef void kern_enlarge_fn(struct kern_stream *, struct kern_mat y, struct kern_cmat x, int64_t height, int64_t width,
                             int64_t nchannel);

/* clang-format off */
#define KERN_IMAGE_OPS(OP) \
    OP(modulate, modulate) OP(modulate_grad, modulate_grad) OP(gate, gate) OP(square_error, square_error) OP(silu, silu) OP(conv, conv) OP(conv_scratch, conv_scratch) \
    OP(group_norm, group_norm) OP(enlarge, enlarge)
/* clang-format on */

struct kern_image_ops {
#define KERN_MEMBER(name, type) kern_##type##_fn *name;
    KERN_IMAGE_OPS(KERN_MEMBER)
#undef KERN_MEMBER
};

#ifdef __cplusplus
}
#endif
#endif
