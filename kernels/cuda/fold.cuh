/* SPDX-License-Identifier: Apache-2.0 */
/* Sums over tokens: partial sums of each block of KERN_ROW_BLOCK rows, folded in order, ((dst + p0) + p1) + …, as on
 * the CPU. */
#ifndef CUDA_FOLD_CUH
#define CUDA_FOLD_CUH

#include "cuda/vec.cuh"

/* dst[j] += parts[0][j] + parts[1][j] …; parts: (npart, ncol). */
void cuda_fold(struct kern_stream *stream, float *dst, const float *parts, int64_t npart, int64_t ncol);

/* Sums op.value<types>(row, col, n, whole) over each block of rows. Each thread takes eight columns. parts: (blocks of
 * rows, ncol). */
template <types K, typename Op> __global__ void __launch_bounds__(THREADS) sum_row_blocks(Op op, eights e, float *parts)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, col = i * WIDTH, block = blockIdx.y;
    if (i >= e.per_row)
        return;
    const int n = e.ncol - col < WIDTH ? (int)(e.ncol - col) : WIDTH;
    const bool whole = e.aligned && n == WIDTH;
    const int64_t end = (block + 1) * KERN_ROW_BLOCK < e.nrow ? (block + 1) * KERN_ROW_BLOCK : e.nrow;
    f8 sum = {};
    int64_t row = block * KERN_ROW_BLOCK;
    for (; whole && row + 1 < end; row += 2) {
        const f8 x = op.template value<K>(row, col, WIDTH, true), y = op.template value<K>(row + 1, col, WIDTH, true);
#pragma unroll
        for (int j = 0; j < WIDTH; j++)
            sum.v[j] = sum.v[j] + x.v[j] + y.v[j];
    }
    for (; row < end; row++) {
        const f8 x = op.template value<K>(row, col, n, whole);
#pragma unroll
        for (int j = 0; j < WIDTH; j++)
            sum.v[j] += x.v[j];
    }
    for (int j = 0; j < n; j++)
        parts[block * e.ncol + col + j] = sum.v[j];
}

enum { MAX_ROW_BLOCKS = 65535 }; /* second dimension of a grid: 8 million rows */

/* vectors: groups of eight elements start at multiples of 16 bytes. */
template <typename Op>
void sum_rows_by_blocks(struct kern_stream *stream, std::initializer_list<operand> all, bool vectors, int64_t nrow,
                        int64_t ncol, Op op, float *dst, float *parts)
{
    const eights e = { nrow, ncol, (ncol + WIDTH - 1) / WIDTH, vectors };
    const int64_t nblock = kern_row_blocks(nrow);
    if (!cuda_check(stream, nblock <= MAX_ROW_BLOCKS, "sum over rows: more rows than 8 million"))
        return;
    const dim3 grid(blocks_for(e.per_row, THREADS).x, (unsigned)nblock);
    switch (types_of(all)) {
    case ALL_F32: launch(stream, sum_row_blocks<ALL_F32, Op>, grid, THREADS, 0, op, e, parts); break;
    case ALL_BF16: launch(stream, sum_row_blocks<ALL_BF16, Op>, grid, THREADS, 0, op, e, parts); break;
    case MIXED: launch(stream, sum_row_blocks<MIXED, Op>, grid, THREADS, 0, op, e, parts); break;
    }
    cuda_fold(stream, dst, parts, nblock, ncol);
}

#endif
