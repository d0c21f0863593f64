/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products: C = alpha · A · B + add + bias + Σ low-rank segments. The CPU sums all of it in fp32 and rounds
 * once; for GPUs see kern_gemm_fn. The order of a sum depends on the shape only, so that results do not depend on the
 * number of threads. Any mix of dtypes is allowed. bf16 × bf16 is multiplied in bf16 where that is faster (AMX,
 * AVX512-BF16), and widened elsewhere. */
#ifndef KERNELS_GEMM_H
#define KERNELS_GEMM_H

#include <kernels/random.h>
#include <kernels/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A further product, added to rows row0 … row0+nrow-1 of C: C += alpha · S · B. The forward of LoRA uses S =
 * scale·X·Aᵀ and B (n, r), transposed; the gradient of its input uses S = dS and B = A, (r, n). Several segments may
 * cover a row (the gradients of several layers); they are added in order. */
struct kern_lowrank {
    int64_t row0, nrow;
    int64_t r;
    struct kern_cmat s; /* (m, r), indexed by the row of C: segments may share one matrix */
    struct kern_cmat b; /* (r, n), or (n, r) if trans_b */
    bool trans_b;
    float alpha;
    struct kern_dropout dropout; /* p = 0: none. Otherwise each element of alpha·S·B gets the mask and the scale that
                                    the element (row, column) of the input had */
};

struct kern_gemm {
    int64_t m, n, k;       /* k = 0: a product of zeros; m or n = 0: nothing is done */
    struct kern_cmat a;    /* (m, k), or (k, m) if trans_a */
    struct kern_cmat b;    /* (k, n), or (n, k) if trans_b: y = x·Wᵀ with W as torch.nn.Linear stores it */
    struct kern_mat c;     /* (m, n) */
    bool trans_a, trans_b; /* not both */
    float alpha;           /* 0 in a zeroed struct: set it */
    struct kern_cmat add;  /* (m, n) or none; may be C itself (accumulation), must not overlap it otherwise */
    struct kern_cmat bias; /* (n) or none, pitch ignored */
    const struct kern_lowrank *lowrank; /* borrowed during the call */
    int nlowrank;
};

/* C must not overlap A, B or S. A GPU rounds a bf16 C after each part, the low-rank parts first and the product last:
 * an fp32 sum would cost more memory traffic than the products take time. (PyTorch rounds each part and each sum of
 * two parts.) */
typedef void kern_gemm_fn(struct kern_stream *, const struct kern_gemm *);

#ifdef __cplusplus
}
#endif
#endif
