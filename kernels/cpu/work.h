/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts the work of CPU kernels into pieces, and gives access to rows as fp32 strips, whatever their type. The cuts
 * depend on shapes only. */
#ifndef CPU_WORK_H
#define CPU_WORK_H

#include "cpu/simd.h"
#include "cpu/stream.h"

/* One strip: columns col … col+n-1 of a row, n ≤ CPU_STRIP. */
typedef void (*cpu_strip_fn)(const struct cpu_simd *simd, void *ctx, int64_t row, int64_t col, int64_t n);
/* Calls fn for each strip of an (nrow, ncol) matrix, in any order. Does nothing if the stream has failed. */
void cpu_for_strips(struct kern_stream *stream, int64_t nrow, int64_t ncol, cpu_strip_fn fn, void *ctx);

/* Calls fn for each block of KERN_ROW_BLOCK rows, with its index, its first row and the row after its last. */
typedef void (*cpu_block_fn)(const struct cpu_simd *simd, void *ctx, int64_t block, int64_t row0, int64_t row1);
void cpu_for_blocks(struct kern_stream *stream, int64_t nrow, cpu_block_fn fn, void *ctx);

/* dst[j] += parts[0][j] + parts[1][j] …, each added in order: ((dst + p0) + p1) + … */
void cpu_fold(struct kern_stream *stream, float *dst, const float *parts, int64_t npart, int64_t ncol);

/* Returns n elements of a row from column col on: in place if the matrix is fp32, else widened into strip. */
const float *cpu_load(const struct cpu_simd *simd, struct kern_cmat m, int64_t row, int64_t col, int64_t n,
                      float *strip);
/* Like cpu_load, but always a copy in dst. */
void cpu_load_copy(const struct cpu_simd *simd, float *dst, struct kern_cmat m, int64_t row, int64_t col, int64_t n);
/* One element. */
static inline float cpu_load_one(const struct cpu_simd *simd, struct kern_cmat m, int64_t row, int64_t col)
{
    float x;
    return *cpu_load(simd, m, row, col, 1, &x);
}
/* Returns where to compute n elements for cpu_store: in place if the matrix is fp32, else strip. */
float *cpu_target(struct kern_mat m, int64_t row, int64_t col, float *strip);
void cpu_store(const struct cpu_simd *simd, struct kern_mat m, int64_t row, int64_t col, int64_t n,
               const float *values);

/* Returns true if a kernel may run: the stream has not failed and `good` is true. If `good` is false, sets the stream's
 * error to `what`. */
bool cpu_check(struct kern_stream *stream, bool good, const char *what);

#endif
