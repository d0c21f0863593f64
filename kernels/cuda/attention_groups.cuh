/* SPDX-License-Identifier: Apache-2.0 */
/* Attention's products by warpgroups (wgmma, Hopper alone). A block has two, 64 rows each, that share the tiles they go along. Tiles are slabs of 64 features,
 * swizzled as warpgroup.cuh says. Products are started, and finished when what they give is needed: weights are computed while others are under way. */
#ifndef CUDA_ATTENTION_GROUPS_CUH
#define CUDA_ATTENTION_GROUPS_CUH

#include "cuda/attention_weights.cuh"
#include "cuda/warpgroup.cuh"

enum { GROUPS_THREADS = GROUPS_ROWS / GROUP_ROWS * WARPGROUP };

template <int D, int R> struct swizzled {
    static constexpr int DIM = D, ROWS = R, THREADS = GROUPS_THREADS, WHOLE = D / SLAB * SLAB; /* features in whole slabs */
    static_assert(D == WHOLE || D == WHOLE + HALF_SLAB);
    alignas(1024) uint16_t v[DIM * ROWS];

    __device__ __forceinline__ uint16_t *at(int row, int col)
    {
        return &v[place(row, col)];
    }
    __device__ __forceinline__ const uint16_t *at(int row, int col) const
    {
        return &v[place(row, col)];
    }
    /* 64 rows from a multiple of 8, features k … k+15. A descriptor counts 16 bytes: eight features. */
    __device__ __forceinline__ uint64_t rows(int row, int k) const
    {
        return part_of(k) + (uint64_t)(row * (k < WHOLE ? SLAB : HALF_SLAB) + k % SLAB) / 8;
    }
    /* Rows k … k+15, features from col on: of a slab, or of the half. */
    __device__ __forceinline__ uint64_t across(int k, int col) const
    {
        return part_of(col) + (uint64_t)(k * (col < WHOLE ? SLAB : HALF_SLAB)) / 8;
    }

  private:
    static __device__ __forceinline__ int place(int row, int col)
    {
        if (DIM == WHOLE || col < WHOLE)
            return (col / SLAB * ROWS + row) * SLAB + (col / 8 ^ row) % 8 * 8 + col % 8;
        return WHOLE * ROWS + row * HALF_SLAB + (col / 8 ^ row / 2) % 4 * 8 + col % 8;
    }
    /* The slab that feature col is in. */
    __device__ __forceinline__ uint64_t part_of(int col) const
    {
        return col < WHOLE ? group_matrix<SLAB>(v) + (uint64_t)(col / SLAB * ROWS * SLAB / 8) : group_matrix<HALF_SLAB>(v) + (uint64_t)(WHOLE * ROWS / 8);
    }
};

/* A warpgroup's 64 rows of a matrix of N columns as A, in registers. */
template <int N> struct held {
    uint32_t x[N / 16][4];
};

template <int DIM, int ROWS> __device__ __forceinline__ void hold_rows(held<DIM> &h, const swizzled<DIM, ROWS> &t)
{
#pragma unroll
    for (int k = 0; k < DIM; k += 16)
        load_rows(h.x[k / 16], t, k);
}

template <int N> __device__ __forceinline__ void hold_part(held<N> &h, const part<N> &a)
{
#pragma unroll
    for (int k = 0; k < N; k += 16)
        narrow_part(h.x[k / 16], a, k);
}

/* Products that add to these follow, up to the next commit. One fence for all of them: ptxas counts what was started before a fence as a group of its own, and a
 * wait for all but the last group would be one for more than was meant. */
template <int N> __device__ __forceinline__ void begin(part<N> &c)
{
    group_begin<N>(c.v);
}

template <int N> __device__ __forceinline__ void begin(part<N> &c, part<N> &d)
{
    group_pin<N>(d.v);
    group_begin<N>(c.v);
}

/* The warpgroup's first row of its block's tile: of one lane, so that the compiler knows it to be a warp's. Asked for once: it takes as long as a small product. */
__device__ __forceinline__ int group_row()
{
    return __shfl_sync(~0u, (int)threadIdx.x / WARPGROUP, 0) * GROUP_ROWS;
}

/* c = A · Bᵀ over features: B is all rows of a tile; A is held, or the rows of a tile from row0 on where they lie. */
template <int DIM, int N> __device__ __forceinline__ void start_rows(part<N> &c, const held<DIM> &a, const swizzled<DIM, N> &b)
{
#pragma unroll
    for (int k = 0; k < DIM; k += 16)
#pragma unroll
        for (int n = 0; n < N; n += SLAB)
            group_multiply<SLAB, false>(&c.v[n / 8], a.x[k / 16], b.rows(n, k), k > 0);
}

template <int DIM, int ROWS, int N> __device__ __forceinline__ void start_rows(part<N> &c, const swizzled<DIM, ROWS> &a, int row0, const swizzled<DIM, N> &b)
{
#pragma unroll
    for (int k = 0; k < DIM; k += 16)
#pragma unroll
        for (int n = 0; n < N; n += SLAB)
            group_multiply(&c.v[n / 8], a.rows(row0, k), b.rows(n, k), k > 0);
}

/* c += A · B: A is held, B a tile whose rows are A's columns. */
template <int DIM, int N> __device__ __forceinline__ void start_part(part<DIM> &c, const held<N> &a, const swizzled<DIM, N> &b)
{
    constexpr int WHOLE = swizzled<DIM, N>::WHOLE;
#pragma unroll
    for (int k = 0; k < N; k += 16) {
#pragma unroll
        for (int col = 0; col < WHOLE; col += SLAB)
            group_multiply<SLAB, true>(&c.v[col / 8], a.x[k / 16], b.across(k, col), true);
        if constexpr (WHOLE < DIM)
            group_multiply<HALF_SLAB, true>(&c.v[WHOLE / 8], a.x[k / 16], b.across(k, WHOLE), true);
    }
}

/* All that was started is done but the last LEFT that were committed, and these are among it. */
template <int LEFT, int N> __device__ __forceinline__ void finish(part<N> &c)
{
    group_wait<LEFT>();
    group_pin<N>(c.v);
}

template <int LEFT, int N> __device__ __forceinline__ void finish(part<N> &c, part<N> &d)
{
    finish<LEFT>(c);
    group_pin<N>(d.v);
}

/* What comes of a part's elements, to settle by. */
template <int N> __device__ __forceinline__ uint32_t witness_of(const part<N> &c)
{
    uint32_t all = 0;
#pragma unroll
    for (int i = 0; i < N / 8; i++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            all ^= bits_of(c.v[i][e]);
    return all;
}

/* The witness, and what it was computed of, is there before the next wait begins. ptxas moves a wait up as far as memory lets it, which would leave nothing to do
 * while products are under way: so the witness is written to memory that nobody reads. */
__device__ __forceinline__ void settle(uint32_t (&to)[GROUPS_THREADS], uint32_t witness)
{
    *static_cast<volatile uint32_t *>(&to[threadIdx.x]) = witness;
}

/* All copies have landed, and products may read them; and everybody is here. */
__device__ __forceinline__ void meet()
{
    copy_commit();
    copy_wait<0>();
    group_publish();
    __syncthreads();
}

#endif
