/* SPDX-License-Identifier: Apache-2.0 */
/* The choice that a row of an expert belongs to. */
#ifndef CUDA_CHOICE_CUH
#define CUDA_CHOICE_CUH

#include "cuda/launch.cuh"

/* -1: padding. */
__device__ __forceinline__ int64_t choice_of(const int32_t *choices, int64_t row)
{
    return choices ? choices[row] : row;
}

#endif
