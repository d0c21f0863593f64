/* SPDX-License-Identifier: Apache-2.0 */
/* A matrix product as one single-threaded call of oneDNN; primitives are cached by shape. Only matmul.c and
 * matmul_desc.c know oneDNN. */
#ifndef CPU_MATMUL_H
#define CPU_MATMUL_H

#include <kernels/types.h>

struct cpu_matmuls;

/* C (m, n) = op(A) (m, k) · op(B) (k, n), or += if accumulate. A and B have one dtype; fp32 gives fp32, bf16 gives
 * either. Pitches as in kern_mat. */
struct cpu_matmul {
    int64_t m, n, k;
    int64_t lda, ldb, ldc;
    bool trans_a, trans_b, accumulate; /* accumulate requires an fp32 C */
    enum kern_dtype in, out;
};

/* nworkers: threads that may call cpu_matmul_run concurrently. message: of KERN_MESSAGE_BYTES. */
int cpu_matmuls_new(unsigned nworkers, struct cpu_matmuls **out, char *message);
void cpu_matmuls_free(struct cpu_matmuls *matmuls);

/* Any worker may call it. Returns 0 or an error, described in message (KERN_MESSAGE_BYTES). m, n, k > 0. */
int cpu_matmul_run(struct cpu_matmuls *matmuls, unsigned worker, const struct cpu_matmul *shape, const void *a,
                   const void *b, void *c, char *message);

/* The instruction sets that products may use: those of the processor, limited by oneDNN's own variable
 * ONEDNN_MAX_CPU_ISA. Our kernels keep to the same limit, so that one processor can give the bits of another. */
enum cpu_isa { CPU_ISA_BASE, CPU_ISA_AVX2, CPU_ISA_AVX512, CPU_ISA_AVX512_BF16, CPU_ISA_AMX };
enum cpu_isa cpu_matmul_isa(void);

/* Returns true if bf16 products are faster than fp32 on this processor. */
bool cpu_matmul_bf16(void);

/* oneDNN's OpenMP uses the thread count of the calling thread. enter sets it to 1, on a thread that is not ours, and
 * returns the old count; leave restores it. */
int cpu_matmul_enter(void);
void cpu_matmul_leave(int threads);

#endif
