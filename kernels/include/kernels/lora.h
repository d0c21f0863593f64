/* SPDX-License-Identifier: Apache-2.0 */
/* LoRA (Hu et al. 2021): Y = X·Wᵀ + scale · (drop(X)·Aᵀ)·Bᵀ, by segments of rows (one segment is one adapter). The
 * products with W include the low-rank part (kern_gemm.lowrank), rounded as kern_gemm_fn says. The remaining products
 * are:
 *
 *   forward     S  = scale · drop(X)·Aᵀ       lora_down
 *               Y  = X·Wᵀ + S·Bᵀ              gemm, lowrank {s: S, b: B, trans_b, alpha: 1}
 *   backward    dB += dYᵀ·S                   lora_grad_b
 *               dS  = scale · dY·B            lora_up_grad
 *               dA += dSᵀ·drop(X)             lora_grad_a
 *               dX  = dY·W + mask(dS·A)       gemm, lowrank {s: dS, b: A, alpha: 1, dropout}
 *
 * S includes the scale and is rounded with it, so that alpha is 1 in gemm. Modules that share X (q, k, v; gate, up)
 * may have their A stacked and their S side by side: with a common scale and no dropout, one call of lora_down or
 * lora_grad_a with r = Σ r does them all. */
#ifndef KERNELS_LORA_H
#define KERNELS_LORA_H

#include <kernels/random.h>
#include <kernels/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Rows row0 … row0+nrow-1 of X, S and dY belong to this adapter. Segments come in order and do not overlap. */
struct kern_lora_segment {
    int64_t row0, nrow, r;
    float scale;
    struct kern_cmat a; /* (r, nin) */
    struct kern_cmat b; /* (nout, r) */
    float *da;          /* (r, nin) at pitch_da, added to */
    float *db;          /* (nout, r) at pitch_db, added to */
    int64_t pitch_da, pitch_db;
    struct kern_dropout dropout; /* row 0 of X is token dropout.token0 */
};

struct kern_lora {
    int64_t nrow, nin, nout;
    const struct kern_lora_segment *segments;
    int nsegments;
    struct kern_cmat x;  /* (nrow, nin): lora_down, lora_grad_a */
    struct kern_cmat dy; /* (nrow, nout): lora_grad_b, lora_up_grad */
    struct kern_mat s;   /* (nrow, max r): written by lora_down, read by lora_grad_b */
    struct kern_mat ds;  /* (nrow, max r): written by lora_up_grad, read by lora_grad_a */
};

/* Each operation reads and writes only what its line above names; other members may be empty. */
typedef void kern_lora_fn(struct kern_stream *, const struct kern_lora *);

#ifdef __cplusplus
}
#endif
#endif
