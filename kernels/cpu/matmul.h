/* SPDX-License-Identifier: Apache-2.0 */
/* One matrix product as one single-threaded call of oneDNN, with primitives kept by shape. All that knows oneDNN is
 * matmul.c. */
#ifndef CPU_MATMUL_H
#define CPU_MATMUL_H

#include <kernels/types.h>

struct cpu_matmuls;

/* C (m, n) = or += op(A) (m, k) · op(B) (k, n). A and B have one dtype; fp32 gives fp32, bf16 gives either. Pitches as
 * in kern_mat. */
struct cpu_matmul {
    int64_t m, n, k;
    int64_t lda, ldb, ldc;
    bool trans_a, trans_b, accumulate; /* accumulate: C is fp32 */
    enum kern_dtype in, out;
};

/* nworkers: threads that may call cpu_matmul_run at once. message: of KERN_MESSAGE_BYTES. */
int cpu_matmuls_new(unsigned nworkers, struct cpu_matmuls **out, char *message);
void cpu_matmuls_free(struct cpu_matmuls *matmuls);

/* From any worker. 0, or an error with its words in message (KERN_MESSAGE_BYTES). m, n, k > 0. */
int cpu_matmul_run(struct cpu_matmuls *matmuls, unsigned worker, const struct cpu_matmul *shape, const void *a,
                   const void *b, void *c, char *message);

/* Whether bf16 products are worth running as such here: the processor has AMX, or is one where AVX512-BF16 is faster
 * than fp32. */
bool cpu_matmul_bf16(void);

/* oneDNN's OpenMP takes as many threads as the calling thread says. Around calls from a thread that is not ours: keeps
 * what it had. */
int cpu_matmul_enter(void);
void cpu_matmul_leave(int threads);

#endif
