/* SPDX-License-Identifier: Apache-2.0 */
/* A stream as the files of the hosted runtime see it. Work counts as in flight until a call waits for it or polls it
 * twice. */
#ifndef CUDA_HOSTED_STREAM_H
#define CUDA_HOSTED_STREAM_H

#include "hosted.h"

#include <cuda_runtime_api.h>

struct CUstream_st {
    int live, device;
    uint64_t put, done;       /* number of commands */
    struct CUgraph_st *graph; /* NULL: no capture */
    bool spoilt;              /* the capture is invalid */
};

/* Common start of a call: returns its injected or sticky error. */
cudaError_t hosted_enter(const char *call);
/* Returns the error of a call that is not allowed during capture, of stream s or, if NULL, of this thread. */
cudaError_t hosted_unfit(struct CUstream_st *s);

#endif
