/* SPDX-License-Identifier: Apache-2.0 */
/* Indices that only the device sees are looked at there, before they are used. */
#ifndef CUDA_ROWS_CUH
#define CUDA_ROWS_CUH

#include "cuda/launch.cuh"

/* Sets the stream's fault to the first index below lowest or not below limit, if there is none yet. */
void cuda_check_indices(struct kern_stream *stream, const int32_t *index, int64_t nrow, int64_t lowest, int64_t limit,
                        enum cuda_fault_kind kind);

#endif
