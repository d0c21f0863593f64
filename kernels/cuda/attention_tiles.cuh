/* SPDX-License-Identifier: Apache-2.0 */
/* Tiles of bf16 in shared memory, for attention on tensor cores: loads and stores. A tile type has ROWS rows of DIM
 * features, and THREADS, the size of the blocks that use it. at(row, col) gives an element; eight elements from a
 * multiple of eight on are contiguous. */
#ifndef CUDA_ATTENTION_TILES_CUH
#define CUDA_ATTENTION_TILES_CUH

#include "cuda/attention.cuh"
#include "cuda/mma.cuh"
#include "cuda/reduce.cuh"

/* Shared memory that a block of threads may use: on every device of compute capability 8.0 or newer (8.6, 8.9 and 12.x
 * have the least), and on Hopper. */
constexpr size_t ANY_SHARED_BYTES = 99 << 10, HOPPER_SHARED_BYTES = 227 << 10;

/* The accumulators of a warp: 16 rows, N / 8 groups of 8 columns. */
template <int N> struct accumulator {
    float v[N / 8][4];
};

/* Row of element e of an accumulator, within the 16 rows of the warp, and its column within its group of eight. */
__device__ __forceinline__ int accumulator_row(int e)
{
    return (int)threadIdx.x % WARP / 4 + e / 2 * 8;
}

__device__ __forceinline__ int accumulator_col(int e)
{
    return (int)threadIdx.x % 4 * 2 + e % 2;
}

/* First row of the warp in the tile of its block. */
__device__ __forceinline__ int first_row()
{
    return (int)threadIdx.x / WARP * 16;
}

/* Loads rows token … token+n-1 of a head into a tile, with zeros beyond row n and beyond the features of the head.
 * Copies are asynchronous if addresses are multiples of 16 bytes. Each thread takes the same eight features of several
 * rows a multiple of eight apart, so that its addresses differ by a constant. */
template <typename tile_type>
__device__ __forceinline__ void load_tile(tile_type &to, const struct kern_cmat &m, int64_t token, int64_t n,
                                          int64_t head, int64_t dim, bool vectors)
{
    constexpr int ACROSS = tile_type::DIM <= 64 ? 8 : 16, DOWN = tile_type::THREADS / ACROSS;
    const int row0 = (int)threadIdx.x / ACROSS, col = (int)threadIdx.x % ACROSS * 8;
    if (col >= tile_type::DIM)
        return;
    const int nrow = col >= dim ? 0 : n < tile_type::ROWS ? (int)n : tile_type::ROWS;
    const uint16_t *from =
        static_cast<const uint16_t *>(m.data) + (nrow ? (token + row0) * m.pitch + head * dim + col : 0);
    if (vectors) {
#pragma unroll
        for (int i = 0; i < tile_type::ROWS / DOWN; i++) /* rows beyond nrow are not read */
            copy_async(to.at(row0 + i * DOWN, col), from + i * DOWN * m.pitch, row0 + i * DOWN < nrow ? 16 : 0);
        return;
    }
#pragma unroll 1
    for (int i = 0; i < tile_type::ROWS / DOWN; i++)
        for (int j = 0; j < 8; j++)
            to.at(row0 + i * DOWN, col)[j] =
                row0 + i * DOWN < nrow && col + j < dim ? from[i * DOWN * m.pitch + j] : (uint16_t)0;
}

/* Columns k … k+15 of an accumulator, rounded to bf16: the A operand of a product. */
template <int N> __device__ __forceinline__ void narrow_accumulator(uint32_t x[4], const accumulator<N> &a, int k)
{
    const float(&low)[4] = a.v[k / 8], (&high)[4] = a.v[k / 8 + 1];
    x[0] = narrow2(low[0], low[1]);
    x[1] = narrow2(low[2], low[3]);
    x[2] = narrow2(high[0], high[1]);
    x[3] = narrow2(high[2], high[3]);
}

/* Features k … k+15 of a warp's 16 rows of a tile: the A operand of a product. */
template <typename tile_type> __device__ __forceinline__ void load_rows(uint32_t x[4], const tile_type &t, int k)
{
    const int lane = (int)threadIdx.x % WARP;
    load_matrices(x, t.at(first_row() + lane % 16, k + lane / 16 * 8));
}

/* Stores the 16 rows of a warp with 16-byte stores, through the warp's rows of a tile in shared memory, which no other
 * warp reads by then. Row r is scaled by factor[r / 8]. */
template <typename tile_type>
__device__ __forceinline__ void store_accumulator(const struct kern_mat &m, tile_type &by,
                                                  const accumulator<tile_type::DIM> &c, const float factor[2],
                                                  int64_t token, int64_t n, int64_t head, int64_t dim, bool vectors)
{
    constexpr int WIDE = tile_type::DIM / 8;
    const int lane = (int)threadIdx.x % WARP, row0 = first_row();
    uint16_t *to = static_cast<uint16_t *>(m.data);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < WIDE; i++)
#pragma unroll
        for (int e = 0; e < 4; e += 2)
            *reinterpret_cast<uint32_t *>(by.at(row0 + accumulator_row(e), i * 8 + accumulator_col(e))) =
                narrow2(c.v[i][e] * factor[e / 2], c.v[i][e + 1] * factor[e / 2]);
    __syncwarp();
    for (int i = lane; i < 16 * WIDE; i += WARP) {
        const int row = row0 + i / WIDE, col = i % WIDE * 8;
        if (row >= n || col >= dim)
            continue;
        const uint16_t *at = by.at(row, col);
        uint16_t *out = to + (token + row) * m.pitch + head * dim + col;
        if (vectors)
            *reinterpret_cast<uint4 *>(out) = *reinterpret_cast<const uint4 *>(at);
        for (int j = 0; !vectors && j < 8 && col + j < dim; j++)
            out[j] = at[j];
    }
}

/* Sum or maximum of one row of an accumulator, over the four lanes that share it. */
__device__ __forceinline__ float row_sum(float x)
{
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

__device__ __forceinline__ float row_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

/* Number of rows, of nrow from `token` on, that are before `end`. */
__device__ __forceinline__ int64_t rows_before(int64_t end, int64_t token, int64_t nrow)
{
    return end - token < nrow ? end - token : nrow;
}

/* Calls call(DIM) with the smallest padded head size that holds dim features. */
#define FOR_DIM(dim, call) \
    do { \
        if ((dim) <= 64) \
            call(64); \
        else if ((dim) <= 96) \
            call(96); \
        else \
            call(128); \
    } while (0)

#endif
