/* SPDX-License-Identifier: Apache-2.0 */
/* The products of attention by warpgroups (wgmma, Hopper only). A block of threads has two warpgroups of 64 rows each,
 * which share the tiles of the other operand. A tile consists of slabs of 64 features, swizzled as warpgroup.cuh
 * describes. Products are asynchronous: a kernel starts them, computes weights meanwhile, and waits for them when it
 * needs the result. */
#ifndef CUDA_ATTENTION_GROUPS_CUH
#define CUDA_ATTENTION_GROUPS_CUH

#include "cuda/attention_weights.cuh"
#include "cuda/warpgroup.cuh"

enum { GROUPS_THREADS = GROUPS_ROWS / GROUP_ROWS * WARPGROUP };

template <int D, int R> struct swizzled {
    /* DIM: features, in slabs of SLAB plus at most one half slab. WHOLE: those in whole slabs. */
    static constexpr int DIM = D, ROWS = R, THREADS = GROUPS_THREADS, WHOLE = D / SLAB * SLAB;
    static_assert(D == WHOLE || D == WHOLE + HALF_SLAB);
    alignas(1024) uint16_t v[DIM * ROWS];

    __device__ __forceinline__ uint16_t *at(int row, int col)
    {
        return &v[offset_of(row, col)];
    }
    __device__ __forceinline__ const uint16_t *at(int row, int col) const
    {
        return &v[offset_of(row, col)];
    }
    /* 64 rows from a multiple of 8, features k … k+15. A descriptor counts 16 bytes: eight features. */
    __device__ __forceinline__ uint64_t rows(int row, int k) const
    {
        return slab_of(k) + (uint64_t)(row * (k < WHOLE ? SLAB : HALF_SLAB) + k % SLAB) / 8;
    }
    /* Rows k … k+15, features from col on. The features lie in one slab, or in the half slab. */
    __device__ __forceinline__ uint64_t transposed(int k, int col) const
    {
        return slab_of(col) + (uint64_t)(k * (col < WHOLE ? SLAB : HALF_SLAB)) / 8;
    }

  private:
    static __device__ __forceinline__ int offset_of(int row, int col)
    {
        if (DIM == WHOLE || col < WHOLE)
            return (col / SLAB * ROWS + row) * SLAB + (col / 8 ^ row) % 8 * 8 + col % 8;
        return WHOLE * ROWS + row * HALF_SLAB + (col / 8 ^ row / 2) % 4 * 8 + col % 8;
    }
    /* Descriptor of the slab that holds feature col. */
    __device__ __forceinline__ uint64_t slab_of(int col) const
    {
        return col < WHOLE ? group_matrix<SLAB>(v) + (uint64_t)(col / SLAB * ROWS * SLAB / 8)
                           : group_matrix<HALF_SLAB>(v) + (uint64_t)(WHOLE * ROWS / 8);
    }
};

/* The A operand of wgmma in registers: the 64 rows of a warpgroup, N columns. */
template <int N> struct a_fragment {
    uint32_t x[N / 16][4];
};

template <int DIM, int ROWS>
__device__ __forceinline__ void load_a_fragment(a_fragment<DIM> &h, const swizzled<DIM, ROWS> &t)
{
#pragma unroll
    for (int k = 0; k < DIM; k += 16)
        load_rows(h.x[k / 16], t, k);
}

template <int N> __device__ __forceinline__ void narrow_to_fragment(a_fragment<N> &h, const accumulator<N> &a)
{
#pragma unroll
    for (int k = 0; k < N; k += 16)
        narrow_accumulator(h.x[k / 16], a, k);
}

/* Starts a group of products that add to c (and d), up to the next commit. One fence serves all of them: ptxas counts
 * the products before a fence as a separate group, so with more fences a wait for all groups but the last would wait
 * for too many. */
template <int N> __device__ __forceinline__ void begin(accumulator<N> &c)
{
    group_begin<N>(c.v);
}

template <int N> __device__ __forceinline__ void begin(accumulator<N> &c, accumulator<N> &d)
{
    group_pin<N>(d.v);
    group_begin<N>(c.v);
}

/* First row of the warpgroup in the tile of its block. One lane provides it, so that the compiler knows that it is
 * uniform in the warp. Call it once per kernel: it takes as long as a small product. */
__device__ __forceinline__ int group_row()
{
    return __shfl_sync(~0u, (int)threadIdx.x / WARPGROUP, 0) * GROUP_ROWS;
}

/* c = A · Bᵀ over features. B is all rows of a tile. A is a fragment in registers, or the rows from row0 on of a tile
 * in shared memory. */
template <int DIM, int N>
__device__ __forceinline__ void start_rows(accumulator<N> &c, const a_fragment<DIM> &a, const swizzled<DIM, N> &b)
{
#pragma unroll
    for (int k = 0; k < DIM; k += 16)
#pragma unroll
        for (int n = 0; n < N; n += SLAB)
            group_multiply<SLAB, false>(&c.v[n / 8], a.x[k / 16], b.rows(n, k), k > 0);
}

template <int DIM, int ROWS, int N>
__device__ __forceinline__ void start_rows(accumulator<N> &c, const swizzled<DIM, ROWS> &a, int row0,
                                           const swizzled<DIM, N> &b)
{
#pragma unroll
    for (int k = 0; k < DIM; k += 16)
#pragma unroll
        for (int n = 0; n < N; n += SLAB)
            group_multiply(&c.v[n / 8], a.rows(row0, k), b.rows(n, k), k > 0);
}

/* c += A · B. A is a fragment in registers; the rows of the tile B are the columns of A. */
template <int DIM, int N>
__device__ __forceinline__ void start_accumulator(accumulator<DIM> &c, const a_fragment<N> &a,
                                                  const swizzled<DIM, N> &b)
{
    constexpr int WHOLE = swizzled<DIM, N>::WHOLE;
#pragma unroll
    for (int k = 0; k < N; k += 16) {
#pragma unroll
        for (int col = 0; col < WHOLE; col += SLAB)
            group_multiply<SLAB, true>(&c.v[col / 8], a.x[k / 16], b.transposed(k, col), true);
        if constexpr (WHOLE < DIM)
            group_multiply<HALF_SLAB, true>(&c.v[WHOLE / 8], a.x[k / 16], b.transposed(k, WHOLE), true);
    }
}

/* Waits until at most LEFT of the committed groups are in flight. c (and d) must belong to the finished ones. */
template <int LEFT, int N> __device__ __forceinline__ void finish(accumulator<N> &c)
{
    group_wait<LEFT>();
    group_pin<N>(c.v);
}

template <int LEFT, int N> __device__ __forceinline__ void finish(accumulator<N> &c, accumulator<N> &d)
{
    finish<LEFT>(c);
    group_pin<N>(d.v);
}

/* XOR of all elements of an accumulator, for keep_before_wait. */
template <int N> __device__ __forceinline__ uint32_t xor_of(const accumulator<N> &c)
{
    uint32_t all = 0;
#pragma unroll
    for (int i = 0; i < N / 8; i++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            all ^= bits_of(c.v[i][e]);
    return all;
}

/* Forces the computation of `witness` before the next wait, by writing it to memory that is never read. Otherwise ptxas
 * moves the wait up as far as memory operations allow, and nothing would run beside the products. */
__device__ __forceinline__ void keep_before_wait(uint32_t (&to)[GROUPS_THREADS], uint32_t witness)
{
    *static_cast<volatile uint32_t *>(&to[threadIdx.x]) = witness;
}

/* Waits until all asynchronous copies of the block have landed, and makes them visible to wgmma. A barrier for the
 * block. */
__device__ __forceinline__ void wait_for_copies()
{
    copy_commit();
    copy_wait<0>();
    group_publish();
    __syncthreads();
}

#endif
