/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizer's step, and the norm of all gradients: of all that a rank has in one call, so that a device is given one piece of work. The norm is
 * exact: each row's sum of squares is taken in fp64 in a fixed order, and the rows are added in a wide integer, so that the sum does not depend on who owns which
 * rows. */
#ifndef KERNELS_OPTIMIZER_H
#define KERNELS_OPTIMIZER_H

#include <kernels/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* torch.optim.AdamW (Loshchilov and Hutter 2019), with decoupled decay:
 *   g = grad·grad_scale;  p -= lr·weight_decay·p;  m += (g - m)·(1 - beta1);  v = beta2·v + (1 - beta2)·g²
 *   p -= lr/(1 - beta1ᵗ) · m / (√v/√(1 - beta2ᵗ) + eps) */
struct kern_adamw_range {
    int64_t nelem;
    float *p, *m, *v;  /* master weights and moments, fp32 */
    const float *grad; /* fp32 */
    double weight_decay;
    void *rounded;     /* gets p as bf16; NULL: nowhere. Overlaps no range */
};
struct kern_adamw {
    const struct kern_adamw_range *ranges; /* (nranges) that do not overlap; read by the host, before the call returns */
    size_t nranges;
    double grad_scale; /* the clip coefficient; 1: none */
    double lr, beta1, beta2, eps;
    int64_t t;         /* counts from 1 */
};
typedef void kern_adamw_fn(struct kern_stream *, const struct kern_adamw *);

/* out[i] = Σ over j of x[i][j]², fp64, of all rows of all matrices, one after another. The order inside a row depends on ncol alone. */
struct kern_rows {
    struct kern_cmat x;
    int64_t nrow, ncol;
};
typedef void kern_sum_squares_fn(struct kern_stream *, double *out, const struct kern_rows *matrices /* read before the call returns */, size_t nmatrices);

/* A sum of non-negative doubles without rounding: 32 bits in each 64-bit limb, lowest first, so that the accumulators of up to 2³¹ ranks can be added limb
 * by limb (an integer all-reduce). The last limb counts the numbers that were infinite, NaN or negative. */
enum { KERN_EXACT_LIMBS = 68 };
struct kern_exact {
    uint64_t limb[KERN_EXACT_LIMBS + 1];
};
void kern_exact_add(struct kern_exact *sum, const double *x, int64_t nelem);
/* The sum, rounded to nearest even once; NaN if one of the numbers was not finite. Limbs may be those of several accumulators added up. */
double kern_exact_value(const struct kern_exact *sum);

#ifdef __cplusplus
}
#endif
#endif
