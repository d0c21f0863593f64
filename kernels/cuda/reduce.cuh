/* SPDX-License-Identifier: Apache-2.0 */
/* Sums and maxima over a warp or a block, in a fixed order: a butterfly over lanes, then over warps. All threads get
 * the result. */
#ifndef CUDA_REDUCE_CUH
#define CUDA_REDUCE_CUH

#include "cuda/launch.cuh"

constexpr int WARP = 32, MAX_WARPS = 32;

/* Sum over an aligned group of LANES lanes of a warp. LANES is a power of two. */
template <int LANES, typename T> __device__ __forceinline__ T lanes_sum(T x)
{
#pragma unroll
    for (int with = LANES / 2; with > 0; with /= 2)
        x += __shfl_xor_sync(~0u, x, with);
    return x;
}

template <typename T> __device__ __forceinline__ T warp_sum(T x)
{
    return lanes_sum<WARP>(x);
}

/* Ignores NaNs; the sums that follow show them. */
__device__ __forceinline__ float warp_max(float x)
{
#pragma unroll
    for (int with = WARP / 2; with > 0; with /= 2)
        x = fmaxf(x, __shfl_xor_sync(~0u, x, with));
    return x;
}

/* Scratch of block_sum, at the start of a kernel's shared memory. */
template <typename T> struct block_parts {
    T part[MAX_WARPS];
};

/* Sum over a block of NTHREAD threads. The second barrier allows immediate reuse of parts. */
template <int NTHREAD, typename T> __device__ __forceinline__ T block_sum(block_parts<T> &parts, T x)
{
    x = warp_sum(x);
    if (threadIdx.x % WARP == 0)
        parts.part[threadIdx.x / WARP] = x;
    __syncthreads();
    T sum = parts.part[0];
#pragma unroll
    for (int i = 1; i < NTHREAD / WARP; i++)
        sum += parts.part[i];
    __syncthreads();
    return sum;
}

/* Sum over a group of threads: lanes of a warp, or the whole block. All threads of the block must call it. */
template <int GROUP> __device__ __forceinline__ float group_sum(float x)
{
    if constexpr (GROUP <= WARP)
        return lanes_sum<GROUP>(x);
    else
        return block_sum<GROUP>(shared_memory<block_parts<float>>(), x);
}

#endif
