/* SPDX-License-Identifier: Apache-2.0 */
/* RMSNorm (Zhang and Sennrich 2019, as in Llama): y = x · rstd · gamma, rstd = 1/√(mean(x²) + eps) over groups of ncol
 * features. With ngroup > 1 it is q/k-norm: each head of a row is a group of its own, and all share gamma. */
#ifndef KERNELS_NORM_H
#define KERNELS_NORM_H

#include <kernels/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct kern_rmsnorm {
    int64_t nrow, ngroup, ncol; /* x and y are (nrow, ngroup · ncol) */
    struct kern_cmat x;
    struct kern_cmat gamma; /* (ncol), pitch ignored */
    float eps;
    struct kern_mat y; /* may be x */
    float *rstd;       /* (nrow, ngroup), written; NULL: not wanted */
};

/* With xh = x·rstd and g = dy·gamma: dx = rstd · (g - xh · mean(g·xh)); dgamma = Σ over rows and groups of dy·xh. */
struct kern_rmsnorm_grad {
    int64_t nrow, ngroup, ncol;
    struct kern_cmat x, dy; /* (nrow, ngroup · ncol) */
    struct kern_cmat gamma; /* (ncol) */
    const float *rstd;      /* (nrow, ngroup), from the forward */
    struct kern_cmat add;   /* (nrow, ngroup · ncol) or none: dx += add (the residual's gradient); may be dx or dy */
    struct kern_mat dx;     /* may be dy; data NULL: not wanted */
    float *dgamma;          /* (ncol), added to; NULL: frozen, and not computed */
    float *scratch;         /* with dgamma: kern_rmsnorm_scratch(…) floats */
};

/* Partial sums of each block of rows. */
static inline int64_t kern_rmsnorm_scratch(int64_t nrow, int64_t ncol)
{
    return kern_row_blocks(nrow) * ncol;
}

typedef void kern_rmsnorm_fn(struct kern_stream *, const struct kern_rmsnorm *);
typedef void kern_rmsnorm_grad_fn(struct kern_stream *, const struct kern_rmsnorm_grad *);

#ifdef __cplusplus
}
#endif
#endif
