/* Tiles of bf16 in shared memory and a warp's products of them, for attention on tensor cores. A tile's rows are DIM features and 8 more elements of nothing: an
 * odd number of 16 bytes, so that eight rows' pieces lie in different banks. */
#ifndef CUDA_ATTENTION_TILES_CUH
#define CUDA_ATTENTION_TILES_CUH

#include "cuda/attention.cuh"
#include "cuda/mma.cuh"
#include "cuda/reduce.cuh"

enum { NWARP = TILE_ROWS / 16, TILE_THREADS = NWARP * WARP }; /* a warp has 16 rows of its block's tile */

template <int DIM> constexpr int pitch_of = DIM + 8;

template <int DIM> struct tile_memory {
    alignas(16) uint16_t at[TILE_ROWS][pitch_of<DIM>];
};

/* A warp's part of a matrix: 16 rows, N / 8 times 8 columns. */
template <int N> struct part {
    float v[N / 8][4];
};

/* Row of a part's element e, counted in the warp's 16, and its column in its eight. */
__device__ __forceinline__ int part_row(int e)
{
    return (int)threadIdx.x % WARP / 4 + e / 2 * 8;
}

__device__ __forceinline__ int part_col(int e)
{
    return (int)threadIdx.x % 4 * 2 + e % 2;
}

/* Rows token … token+n-1 of a head, zeros beyond n and beyond its dim. Asynchronous where addresses are multiples of 16 bytes. */
template <int DIM> __device__ __forceinline__ void load_tile(tile_memory<DIM> &to, const struct kern_cmat &m, int64_t token, int64_t n, int64_t head, int64_t dim,
                                                             bool vectors)
{
    const uint16_t *from = static_cast<const uint16_t *>(m.data);
    for (int i = (int)threadIdx.x; i < TILE_ROWS * (DIM / 8); i += TILE_THREADS) {
        const int row = i / (DIM / 8), col = i % (DIM / 8) * 8;
        const bool there = row < n && col < dim;
        if (vectors) {
            copy_async(&to.at[row][col], there ? from + (token + row) * m.pitch + head * dim + col : from, there ? 16 : 0);
            continue;
        }
        for (int j = 0; j < 8; j++)
            to.at[row][col + j] = there && col + j < dim ? from[(token + row) * m.pitch + head * dim + col + j] : (uint16_t)0;
    }
}

/* c = or += A · Bᵀ over features: A is 16 rows of a tile from row0, B all rows of another. */
template <int DIM> __device__ __forceinline__ void multiply_rows(part<TILE_ROWS> &c, const tile_memory<DIM> &a, int row0, const tile_memory<DIM> &b)
{
    const int lane = (int)threadIdx.x % WARP;
#pragma unroll
    for (int k = 0; k < DIM; k += 16) {
        uint32_t x[4];
        load_matrices(x, &a.at[row0 + lane % 16][k + lane / 16 * 8]);
#pragma unroll
        for (int n = 0; n < TILE_ROWS; n += 16) {
            uint32_t y[4];
            load_matrices(y, &b.at[n + lane / 16 * 8 + lane % 8][k + lane / 8 % 2 * 8]);
            multiply_add(c.v[n / 8], x, y[0], y[1]);
            multiply_add(c.v[n / 8 + 1], x, y[2], y[3]);
        }
    }
}

/* c += A · B: A is a part in registers, rounded to bf16, B a tile whose rows are A's columns. */
template <int DIM> __device__ __forceinline__ void multiply_part(part<DIM> &c, const part<TILE_ROWS> &a, const tile_memory<DIM> &b)
{
    const int lane = (int)threadIdx.x % WARP;
#pragma unroll
    for (int k = 0; k < TILE_ROWS; k += 16) {
        const float(&low)[4] = a.v[k / 8], (&high)[4] = a.v[k / 8 + 1];
        const uint32_t x[4] = {narrow2(low[0], low[1]), narrow2(low[2], low[3]), narrow2(high[0], high[1]), narrow2(high[2], high[3])};
#pragma unroll
        for (int n = 0; n < DIM; n += 16) {
            uint32_t y[4];
            load_matrices_across(y, &b.at[k + lane / 8 % 2 * 8 + lane % 8][n + lane / 16 * 8]);
            multiply_add(c.v[n / 8], x, y[0], y[1]);
            multiply_add(c.v[n / 8 + 1], x, y[2], y[3]);
        }
    }
}

/* A warp's 16 rows go out by way of its rows of a tile, which nobody else reads any more: stores of 16 bytes. Row r is scaled by factor[r / 8]. */
template <int DIM> __device__ __forceinline__ void store_part(const struct kern_mat &m, tile_memory<DIM> &by, const part<DIM> &c, const float factor[2], int64_t token,
                                                              int64_t n, int64_t head, int64_t dim, bool vectors)
{
    const int lane = (int)threadIdx.x % WARP, row0 = (int)threadIdx.x / WARP * 16;
    uint16_t *to = static_cast<uint16_t *>(m.data);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < DIM / 8; i++)
#pragma unroll
        for (int e = 0; e < 4; e += 2)
            *reinterpret_cast<uint32_t *>(&by.at[row0 + part_row(e)][i * 8 + part_col(e)]) = narrow2(c.v[i][e] * factor[e / 2], c.v[i][e + 1] * factor[e / 2]);
    __syncwarp();
    for (int i = lane; i < 16 * (DIM / 8); i += WARP) {
        const int row = row0 + i / (DIM / 8), col = i % (DIM / 8) * 8;
        if (row >= n || col >= dim)
            continue;
        uint16_t *out = to + (token + row) * m.pitch + head * dim + col;
        if (vectors)
            *reinterpret_cast<uint4 *>(out) = *reinterpret_cast<const uint4 *>(&by.at[row][col]);
        for (int j = 0; !vectors && j < 8 && col + j < dim; j++)
            out[j] = by.at[row][col + j];
    }
}

/* Sum or maximum of a row of a part: over the four lanes that share it. */
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

/* Whether a query sees a key of its document, if the key is not behind the document's end. */
__device__ __forceinline__ bool sees(const struct kern_attention_shape &s, int64_t query, int64_t key)
{
    return key <= query && (s.window == 0 || key > query - s.window);
}

/* Tiles of keys of its document that a tile of queries looks at: the first key of the first, counted in tiles from the document's start. */
__device__ __forceinline__ int64_t first_seen(const struct kern_attention_shape &s, const struct tile &q)
{
    const int64_t first = s.window && q.token - s.window + 1 > q.begin ? q.token - s.window + 1 - q.begin : 0;
    return q.begin + first / TILE_ROWS * TILE_ROWS;
}

__device__ __forceinline__ int64_t rows_from(const struct tile &t, int64_t token)
{
    return t.end - token < TILE_ROWS ? t.end - token : TILE_ROWS;
}

/* A tile of keys and its values into the one of m's two stages whose turn it is. For the forward's memory and arguments, and for the backward's. */
template <int DIM, typename memory, typename arguments>
__device__ __forceinline__ void load_keys(memory &m, const arguments &a, const struct tile &t, int64_t token, int64_t kv, bool vectors)
{
    const int stage = (int)((token - t.begin) / TILE_ROWS % 2);
    load_tile<DIM>(m.k[stage], a.k, token, rows_from(t, token), kv, a.shape.head_dim, vectors);
    load_tile<DIM>(m.v[stage], a.v, token, rows_from(t, token), kv, a.shape.head_dim, vectors);
}

/* For blocks of threads: any of the sizes that heads are padded to. */
#define FOR_DIM(dim, call)                                                                                                                                     \
    do {                                                                                                                                                       \
        if ((dim) <= 64)                                                                                                                                       \
            call(64);                                                                                                                                          \
        else if ((dim) <= 96)                                                                                                                                  \
            call(96);                                                                                                                                          \
        else                                                                                                                                                   \
            call(128);                                                                                                                                         \
    } while (0)

#endif
