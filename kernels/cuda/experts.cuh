/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that the kernels of mixtures of experts have in common. */
#ifndef CUDA_EXPERTS_CUH
#define CUDA_EXPERTS_CUH

#include "cuda/launch.cuh"

/* The choice that a row belongs to; -1: padding. */
__device__ __forceinline__ int64_t choice_of(const int32_t *choices, int64_t row)
{
    return choices ? choices[row] : row;
}

__device__ __forceinline__ float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

#endif
