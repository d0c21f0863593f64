/* SPDX-License-Identifier: Apache-2.0 */
/* One product by the library: what cuBLASLt takes in one call. gemm.cu makes of it what kernels/gemm.h promises.
 * Row-major, as everywhere. */
#ifndef CUDA_MATMUL_H
#define CUDA_MATMUL_H

#include "cuda/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

/* D = alpha · op(A) · op(B) + beta · C: A and B of one type; C and D of one type, that or fp32. C may be D; beta 0
 * reads no C. */
struct cuda_matmul {
    int64_t m, n, k;
    int64_t lda, ldb, ldc, ldd;
    bool trans_a, trans_b; /* stored as (k, m), as (n, k) */
    enum kern_dtype in, out;
    const void *a, *b, *c;
    void *d;
    float alpha, beta;
    const void *bias; /* (n) of type out, or NULL: added to every row */
};

/* The library's handle, and what it chose for each shape. message: KERN_MESSAGE_BYTES. */
int cuda_matmuls_new(struct cuda_matmuls **out, char *message);
void cuda_matmuls_free(struct cuda_matmuls *matmuls);
/* Puts it on the stream, with the stream's workspace; false where the library has no kernel for it, and nothing was
 * done. The same shape, pitches and alignment give the same kernel and the same bits. A failure is the stream's, and
 * true. */
bool cuda_matmul_run(struct kern_stream *stream, const struct cuda_matmul *matmul);

#ifdef __cplusplus
}
#endif
#endif
