/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products: C = alpha · A · B + add + bias + Σ low-rank segments, all summed in fp32 and rounded once (on GPUs at each part: see kern_gemm_fn). In what order an
 * element is summed depends on the shape alone, so that results do not depend on the number of threads.
 * Any mix of dtypes; bf16 × bf16 runs as such where that is faster (AMX, AVX512-BF16), else widened. */
#ifndef KERNELS_GEMM_H
#define KERNELS_GEMM_H

#include <kernels/random.h>
#include <kernels/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A further product that is added to some rows of C: rows row0 … row0+nrow-1 of C += alpha · S · B. For LoRA forward S = scale·X·Aᵀ and B is (n, r),
 * transposed; for its input gradient S = dS and B is A, (r, n). Several can meet in a row (a gradient that comes from several layers): they are added in order. */
struct kern_lowrank {
    int64_t row0, nrow;
    int64_t r;
    struct kern_cmat s; /* (m, r): indexed by C's row, so that segments can share one matrix */
    struct kern_cmat b; /* (r, n), or (n, r) if trans_b */
    bool trans_b;
    float alpha;
    struct kern_dropout dropout; /* p = 0: none. Else each element of alpha·S·B is masked and scaled as the input's element (row, column) was */
};

struct kern_gemm {
    int64_t m, n, k;       /* k = 0 is a product of zeros; m or n = 0 does nothing */
    struct kern_cmat a;    /* (m, k), or (k, m) if trans_a */
    struct kern_cmat b;    /* (k, n), or (n, k) if trans_b: y = x·Wᵀ with W as torch.nn.Linear stores it */
    struct kern_mat c;     /* (m, n) */
    bool trans_a, trans_b; /* both at once are refused */
    float alpha;           /* 0 in a zeroed struct: set it */
    struct kern_cmat add;  /* (m, n) or none; may be C itself: accumulate. May not overlap it otherwise */
    struct kern_cmat bias; /* (n) or none, pitch ignored */
    const struct kern_lowrank *lowrank; /* borrowed during the call */
    int nlowrank;
};

/* C may not overlap A, B or S. A GPU rounds a bf16 C at each of its parts, the low-rank ones before the product, and not once at the end: an fp32 sum would cost more
 * memory traffic than the products take time. (PyTorch rounds each part, and each sum of two.) */
typedef void kern_gemm_fn(struct kern_stream *, const struct kern_gemm *);

#ifdef __cplusplus
}
#endif
#endif
