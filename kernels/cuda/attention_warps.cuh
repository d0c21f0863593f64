/* SPDX-License-Identifier: Apache-2.0 */
/* The products of attention by warps (mma.m16n8k16, Ampere and later). A block has four warps of 16 rows each. A row
 * of a tile has DIM features and 8 elements of padding, so that its length is an odd multiple of 16 bytes and eight
 * consecutive rows lie in different banks. */
#ifndef CUDA_ATTENTION_WARPS_CUH
#define CUDA_ATTENTION_WARPS_CUH

#include "cuda/attention_weights.cuh"

enum { WARPS_THREADS = WARPS_ROWS / 16 * WARP };

template <int D, int R> struct padded {
    static constexpr int DIM = D, ROWS = R, THREADS = WARPS_THREADS;
    alignas(16) uint16_t v[ROWS][DIM + 8];

    __device__ __forceinline__ uint16_t *at(int row, int col)
    {
        return &v[row][col];
    }
    __device__ __forceinline__ const uint16_t *at(int row, int col) const
    {
        return &v[row][col];
    }
};

/* c += A · Bᵀ over features. A is the rows of a warp in a tile, B all rows of another tile. */
template <int DIM, int N>
__device__ __forceinline__ void multiply_rows(accumulator<N> &c, const padded<DIM, WARPS_ROWS> &a,
                                              const padded<DIM, N> &b)
{
    const int lane = (int)threadIdx.x % WARP;
#pragma unroll
    for (int k = 0; k < DIM; k += 16) {
        uint32_t x[4];
        load_rows(x, a, k);
#pragma unroll
        for (int n = 0; n < N; n += 16) {
            uint32_t y[4];
            load_matrices(y, b.at(n + lane / 16 * 8 + lane % 8, k + lane / 8 % 2 * 8));
            multiply_add(c.v[n / 8], x, y[0], y[1]);
            multiply_add(c.v[n / 8 + 1], x, y[2], y[3]);
        }
    }
}

/* c += A · B. A is an accumulator in registers, rounded to bf16; the rows of the tile B are the columns of A. */
template <int DIM, int N>
__device__ __forceinline__ void multiply_accumulator(accumulator<DIM> &c, const accumulator<N> &a,
                                                     const padded<DIM, N> &b)
{
    const int lane = (int)threadIdx.x % WARP;
#pragma unroll
    for (int k = 0; k < N; k += 16) {
        uint32_t x[4];
        narrow_accumulator(x, a, k);
#pragma unroll
        for (int n = 0; n < DIM; n += 16) {
            uint32_t y[4];
            load_matrices_transposed(y, b.at(k + lane / 8 % 2 * 8 + lane % 8, n + lane / 16 * 8));
            multiply_add(c.v[n / 8], x, y[0], y[1]);
            multiply_add(c.v[n / 8 + 1], x, y[2], y[3]);
        }
    }
}

/* Loads tile i of NROW keys and its values into stage i % 2 of m, if there is such a tile. Serves the forward and the
 * backward pass. */
template <int NROW, typename memory, typename arguments>
__device__ __forceinline__ void load_keys(memory &m, const arguments &a, const key_tiles &w, int32_t i, bool vectors)
{
    const int64_t token = w.first + (int64_t)i * NROW, n = rows_before(w.end, token, NROW);
    if (i >= w.ntile)
        return;
    load_tile(m.k[i % 2], a.k, token, n, w.kv, a.shape.head_dim, vectors);
    load_tile(m.v[i % 2], a.v, token, n, w.kv, a.shape.head_dim, vectors);
}

#endif
