/* SPDX-License-Identifier: Apache-2.0 */
/* The logistic function, which SiLU multiplies by. */
#ifndef CUDA_SIGMOID_CUH
#define CUDA_SIGMOID_CUH

#include "cuda/vec.cuh"

/* For bf16 results two fast instructions suffice, with a relative error of about 2^-21. */
template <types K> __device__ __forceinline__ float sigmoid(float x)
{
#ifdef __CUDACC__
    if (K == ALL_BF16)
        return __fdividef(1.0f, 1.0f + __expf(-x));
#endif
    return 1.0f / (1.0f + expf(-x));
}

#endif
