/* The CUDA row's own matrix product, for what the library does not take: operands of two types, dropout masks on operands or on the result. Plain fp32, no
 * tensor cores. */
#ifndef CUDA_PRODUCT_CUH
#define CUDA_PRODUCT_CUH

#include "cuda/launch.cuh"

#include <kernels/random.h>

/* C = mask_c(alpha · mask_a(op(A)) · mask_b(op(B))) + add. */
struct product {
    int64_t m, n, k;
    struct kern_cmat a, b; /* (m, k), or (k, m) if trans_a; (k, n), or (n, k) if trans_b */
    bool trans_a, trans_b;
    struct kern_mat c;
    float alpha;
    const void *bias;                    /* (n) of C's type, or NULL: added to every row */
    struct kern_cmat add;                /* (m, n) or none; may be C */
    struct kern_dropout drop_a, drop_b;  /* p = 0: none. Of the operand as it is stored; masked only: the scale is for alpha to have */
    struct kern_dropout drop_c;          /* masked and scaled */
};

void cuda_product_own(struct kern_stream *stream, const struct product *p);
/* By the library where it can, else by the above. */
void cuda_product(struct kern_stream *stream, const struct product *p);

#endif
