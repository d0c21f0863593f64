/* SPDX-License-Identifier: Apache-2.0 */
/* Norms of groups of columns: a row, or a head of one. A group is processed by lanes of a warp if it is short, else by
 * a block of threads. A thread keeps its part in registers until the result; parts of long rows are read again, from
 * the cache. */
#ifndef CUDA_PIECES_CUH
#define CUDA_PIECES_CUH

#include "cuda/reduce.cuh"
#include "cuda/vec.cuh"

/* A thread's group of columns and its index among the threads of the group. Threads without a group (!there) take part
 * in the sums too, because all threads of a block must reach the barriers. */
struct member {
    int64_t row, col0;
    uint32_t group;
    int lane;
    bool there;
};

template <int GROUP> __device__ __forceinline__ member group_of_thread(int64_t nrow, int64_t ngroup, int64_t ncol)
{
    member m;
    m.group = GROUP == THREADS ? blockIdx.x : blockIdx.x * (THREADS / GROUP) + threadIdx.x / GROUP;
    m.lane = (int)(threadIdx.x % GROUP);
    m.there = m.group < nrow * ngroup;
    m.row = m.group / (uint32_t)ngroup;
    m.col0 = (int64_t)(m.group % (uint32_t)ngroup) * ncol;
    return m;
}

/* Returns how many elements (0 … 8) piece i of a member has, and the column of the first within the group. */
template <int GROUP> __device__ __forceinline__ int piece_of(const member &m, int i, int64_t ncol, int64_t *col)
{
    *col = ((int64_t)i * GROUP + m.lane) * WIDTH;
    return !m.there || *col >= ncol ? 0 : ncol - *col < WIDTH ? (int)(ncol - *col) : WIDTH;
}

/* EACH: pieces that a thread keeps in registers; all their loads are in flight before the first is used. 0: there are
 * more pieces, and each is read again. */
template <int GROUP, int EACH> __device__ __forceinline__ int npieces(int64_t ncol)
{
    return EACH ? EACH : (int)((ncol + GROUP * WIDTH - 1) / (GROUP * WIDTH));
}

template <int EACH> constexpr int KEPT = EACH ? EACH : 1; /* arrays may not be empty */

template <types K, int GROUP>
__device__ __forceinline__ raw8<K> load_piece(const struct kern_cmat &from, const member &m, int i, int64_t ncol,
                                              bool vectors)
{
    int64_t col;
    const int n = piece_of<GROUP>(m, i, ncol, &col);
    return n ? load_raw8<K>(from, m.row, m.col0 + col, n, vectors && n == WIDTH) : raw8<K>();
}

/* Calls call(GROUP, EACH) with the smallest group of threads that keeps a group of columns in registers, if there is
 * one. K: the types. */
#define FOR_GROUP(ncol, call) \
    do { \
        if ((ncol) <= 8 * WIDTH) \
            call(8, 1); \
        else if ((ncol) <= 16 * WIDTH) \
            call(16, 1); \
        else if ((ncol) <= WARP * WIDTH) \
            call(WARP, 1); \
        else if ((ncol) <= 2 * THREADS * WIDTH) \
            call(THREADS, 2); \
        else if (K == ALL_BF16 && (ncol) <= 4 * THREADS * WIDTH) \
            call(THREADS, K == ALL_BF16 ? 4 : 0); \
        else \
            call(THREADS, 0); \
    } while (0)

#endif
