/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products by cuBLASLt, or by a kernel of our own for what it does not support, such as operands of two types.
 * Variants apply a dropout mask to A, B or the product. */
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
    const void *bias;     /* (n) of C's type, added to every row; or NULL */
    struct kern_cmat add; /* (m, n) or none; may be C */
};

/* Our own kernel: plain fp32, no tensor cores. */
void cuda_product_own(struct kern_stream *stream, const struct product *p);
/* cuBLASLt if it supports the call, else our own kernel. */
void cuda_product(struct kern_stream *stream, const struct product *p);

/* Products with dropout; p = 0 masks nothing. masked_a masks A, which must not be transposed. masked_b masks B, which
 * must not be transposed; C must be fp32 and equal to `add`. Both only mask: alpha must include the scale. masked_c
 * masks and scales the product before `add`; bias must be NULL. */
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
