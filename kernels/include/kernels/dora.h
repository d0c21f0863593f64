/* SPDX-License-Identifier: Apache-2.0 */
/* DoRA (Liu et al. 2024, arXiv:2402.09353). Each row of W + scale·B·A is rescaled to a trained length m. With n the
 * norms of the rows and g = m / n, a linear layer computes g·(X·Wᵀ + scale·X·Aᵀ·Bᵀ) + bias. The gradient treats n as a
 * constant (section 4.3), so only the gradient of m is new:
 *
 *   norms       n  = ‖W + scale·B·A‖ of each row              dora_norm
 *   forward     U  = X·Wᵀ + S·Bᵀ                              gemm, lowrank; S by lora_down
 *               Y  = g·U + bias                               dora_scale
 *   backward    dU = g·dY                                     dora_scale
 *               dB, dS, dA, dX from dU as in LoRA             lora.h
 *               dm += Σ over rows of dY·U / n                 dora_grad
 *
 * With dropout, PEFT feeds the whole input to the base layer and drop(X) to the change: U = drop(X)·Wᵀ + S·Bᵀ, Y = X·Wᵀ
 * + bias + S·Bᵀ + (g - 1)·U. The gradient of X is then dY·W + mask((g - 1)·dY·W) + mask(dS·A). */
#ifndef KERNELS_DORA_H
#define KERNELS_DORA_H

#include <kernels/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct kern_dora_norm {
    int64_t nrow, ncol, r; /* r = 0: norms of W alone */
    float scale;
    struct kern_cmat w; /* (nrow, ncol) */
    struct kern_cmat a; /* (r, ncol) */
    struct kern_cmat b; /* (nrow, r) */
    float *norm;        /* (nrow) */
};
/* Elements of W + scale·B·A are summed in fp32, k ascending; their squares in fp64. */
typedef void kern_dora_norm_fn(struct kern_stream *, const struct kern_dora_norm *);

struct kern_dora_scale {
    int64_t nrow, ncol;
    const float *m, *norm; /* (ncol) */
    float minus;           /* 0: the factor is g; 1: g - 1 */
    struct kern_cmat u;    /* (nrow, ncol) */
    struct kern_cmat bias; /* (ncol) or none, pitch ignored */
    struct kern_cmat add;  /* (nrow, ncol) or none */
    struct kern_mat y;     /* (nrow, ncol); may be u or add */
};
/* y = (m / norm - minus)·u + bias + add. */
typedef void kern_dora_scale_fn(struct kern_stream *, const struct kern_dora_scale *);

struct kern_dora_grad {
    int64_t nrow, ncol;
    struct kern_cmat dy, u; /* (nrow, ncol) */
    const float *norm;      /* (ncol) */
    float *dm;              /* (ncol), added to */
    float *scratch;         /* kern_sum_rows_scratch floats */
};
typedef void kern_dora_grad_fn(struct kern_stream *, const struct kern_dora_grad *);

#ifdef __cplusplus
}
#endif
#endif
