/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products: the library's, and the CUDA row's own for what that does not take, such as operands of two types;
 * with dropout's masks on one of the three. */
#ifndef CUDA_PRODUCT_CUH
#define CUDA_PRODUCT_CUH

#include "cuda/launch.cuh"

#include <kernels/random.h>

/* C = alpha · op(A) · op(B) + bias + add. */
struct product {
    int64_t m, n, k;
    struct kern_cmat a, b; /* (m, k), or (k, m) if trans_a; (k, n), or (n, k) if trans_b */
    bool trans_a, trans_b;
    struct kern_mat c;
    float alpha;
    const void *bias;     /* (n) of C's type, or NULL: added to every row */
    struct kern_cmat add; /* (m, n) or none; may be C */
};

/* Plain fp32, no tensor cores. */
void cuda_product_own(struct kern_stream *stream, const struct product *p);
/* By the library where it can, else by the above. */
void cuda_product(struct kern_stream *stream, const struct product *p);

/* With a mask, that of p = 0 is none. On A, not transposed, or on B, not transposed, where C is fp32 and its own `add`:
 * masked only, the scale is for alpha to have. On the product, without a bias, before `add`: masked and scaled. */
void cuda_product_masked_a(struct kern_stream *stream, const struct product *p, const struct kern_dropout *dropout);
void cuda_product_masked_b(struct kern_stream *stream, const struct product *p, const struct kern_dropout *dropout);
void cuda_product_masked_c(struct kern_stream *stream, const struct product *p, const struct kern_dropout *dropout);

static inline struct kern_cmat rows_from(struct kern_cmat m, int64_t row)
{
    m.data = static_cast<const char *>(m.data) + row * m.pitch * kern_dtype_bytes(m.dtype);
    return m;
}

static inline struct kern_mat rows_from(struct kern_mat m, int64_t row)
{
    m.data = static_cast<char *>(m.data) + row * m.pitch * kern_dtype_bytes(m.dtype);
    return m;
}

#endif
