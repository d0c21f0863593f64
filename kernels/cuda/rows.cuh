/* SPDX-License-Identifier: Apache-2.0 */
/* Checks indices on the device, before kernels use them. */
#ifndef CUDA_ROWS_CUH
#define CUDA_ROWS_CUH

#include "cuda/launch.cuh"

/* Sets the stream's fault to the first index that is below lowest or not below limit, unless a fault is set already. */
void cuda_check_indices(struct kern_stream *stream, const int32_t *index, int64_t nrow, int64_t lowest, int64_t limit,
                        enum cuda_fault_kind kind);

#endif
