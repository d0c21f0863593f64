/* SPDX-License-Identifier: Apache-2.0 */
/* How a .cu file launches its kernels, and what a kernel may use. nvcc compiles CUDA proper; a C++ compiler uses the
 * shim, which gives the same names the same meaning on the CPU, slowly. Kernels use one-dimensional blocks of whole
 * warps, and shared memory only through shared_memory<T>(). */
#ifndef CUDA_LAUNCH_CUH
#define CUDA_LAUNCH_CUH

#include "cuda/stream.h"

#ifdef __CUDACC__

#include <cuda_runtime.h>

enum { PLAIN_SHARED_BYTES = 48 << 10 }; /* a kernel that needs more must opt in */

/* A grid without blocks is not launched. */
template <typename... Params, typename... Args>
void launch(struct kern_stream *stream, void (*kernel)(Params...), dim3 grid, unsigned nthread, size_t shared_nbytes,
            Args... args)
{
    if (stream->status || grid.x == 0 || grid.y == 0 || grid.z == 0)
        return;
    cudaError_t e = cudaSuccess;
    if (shared_nbytes > PLAIN_SHARED_BYTES)
        e = cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 (int)shared_nbytes);
    cudaLaunchConfig_t how = {};
    how.gridDim = grid;
    how.blockDim = dim3(nthread);
    how.dynamicSmemBytes = shared_nbytes;
    how.stream = static_cast<cudaStream_t>(stream->handle);
    if (e == cudaSuccess)
        /* cudaLaunchKernelEx returns its own error; cudaGetLastError may report an older call's */
        e = cudaLaunchKernelEx(&how, kernel, args...);
    if (e != cudaSuccess)
        cuda_fail(stream, KERN_ERR_LIBRARY, "CUDA: a kernel of %u x %u x %u blocks: %s", grid.x, grid.y, grid.z,
                  cudaGetErrorString(e));
}

template <typename T> __device__ __forceinline__ T &shared_memory()
{
    extern __shared__ __align__(1024) unsigned char shared_bytes[]; /* the alignment that swizzled tiles need */
    return *reinterpret_cast<T *>(shared_bytes);
}

#else
#include "cuda/shim/shim.h"
#endif

/* Grid for a kernel whose thread i processes piece i. The count fits a grid: a matrix with more pieces would not fit a
 * device's memory. */
static inline dim3 blocks_for(int64_t npieces, int64_t nthread)
{
    return dim3((unsigned)((npieces + nthread - 1) / nthread));
}

#endif
