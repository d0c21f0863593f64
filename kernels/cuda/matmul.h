/* SPDX-License-Identifier: Apache-2.0 */
/* One call of cuBLASLt. gemm.cu builds the products of kernels/gemm.h from such calls. Matrices are row-major. */
#ifndef CUDA_MATMUL_H
#define CUDA_MATMUL_H

#include "cuda/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

/* D = alpha · op(A) · op(B) + beta · C. A and B have one type; C and D have one type, the same or fp32. C may be D.
 * With beta 0, C is not read. */
struct cuda_matmul {
    int64_t m, n, k;
    int64_t lda, ldb, ldc, ldd;
    bool trans_a, trans_b; /* A is stored as (k, m); B as (n, k) */
    enum kern_dtype in, out;
    const void *a, *b, *c;
    void *d;
    float alpha, beta;
    const void *bias; /* (n) of type out, added to every row; or NULL */
};

/* The library's handle and its cached choices. message: KERN_MESSAGE_BYTES. */
int cuda_matmuls_new(struct cuda_matmuls **out, char *message);
void cuda_matmuls_free(struct cuda_matmuls *matmuls);
/* Enqueues the product, with the stream's workspace. Returns false, having done nothing, if the library has no kernel
 * for it. Equal shape, pitches and alignment give the same kernel and the same bits. On failure sets the stream's error
 * and returns true. */
bool cuda_matmul_run(struct kern_stream *stream, const struct cuda_matmul *matmul);

#ifdef __cplusplus
}
#endif
#endif
