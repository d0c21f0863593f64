/* SPDX-License-Identifier: Apache-2.0 */
/* A stream as the files of the hosted runtime see it. Work counts as in flight until a call waits for it or polls it
 * twice. */
#ifndef CUDA_HOSTED_STREAM_H
#define CUDA_HOSTED_STREAM_H

#include "hosted.h"

#include <cuda_runtime_api.h>

struct CUstream_st {
    int live, device;
    uint64_t put, done;       /* pieces of work */
    struct CUgraph_st *graph; /* NULL: it is not captured */
    bool spoilt;              /* what is captured */
};

/* What a call of this name has to answer before it does anything. */
cudaError_t hosted_enter(const char *call);
/* What a call has to answer which a capture does not allow, of this stream or (NULL) of this thread. */
cudaError_t hosted_unfit(struct CUstream_st *s);

#endif
