/* SPDX-License-Identifier: Apache-2.0 */
/* The step of the optimizer, and the norm of all gradients. One call takes everything that a rank owns, so that a
 * device gets one launch. The norm is exact: the sum of squares of a row is computed in fp64 in a fixed order, and
 * rows are added in a wide integer. It therefore does not depend on which rank owns which rows. */
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
    void *rounded; /* receives p as bf16; NULL: not wanted. Must not overlap any range */
};
struct kern_adamw {
    const struct kern_adamw_range *ranges; /* (nranges) must not overlap; read by the host before the call returns */
    size_t nranges;
    double grad_scale; /* the clip coefficient; 1: none */
    double lr, beta1, beta2, eps;
    int64_t t; /* counts from 1 */
};
typedef void kern_adamw_fn(struct kern_stream *, const struct kern_adamw *);

/* out[i] = Σ over j of x[i][j]², fp64, of all rows of all matrices, one after another. The order inside a row depends
 * on ncol alone. */
struct kern_rows {
    struct kern_cmat x;
    int64_t nrow, ncol;
};
typedef void kern_sum_squares_fn(struct kern_stream *, double *out,
                                 const struct kern_rows *matrices /* read before the call returns */, size_t nmatrices);

/* A sum of non-negative doubles without rounding. Each 64-bit limb holds 32 bits, lowest first, so that the
 * accumulators of up to 2³¹ ranks can be added limb by limb (an integer all-reduce). The last limb counts the numbers
 * that were infinite, NaN or negative. */
enum { KERN_EXACT_LIMBS = 68 };
struct kern_exact {
    uint64_t limb[KERN_EXACT_LIMBS + 1];
};
void kern_exact_add(struct kern_exact *sum, const double *x, int64_t nelem);
/* The sum, rounded to nearest even once; NaN if a number was not finite. The limbs may be sums over several
 * accumulators. */
double kern_exact_value(const struct kern_exact *sum);

#ifdef __cplusplus
}
#endif
#endif
