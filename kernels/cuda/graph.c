/* SPDX-License-Identifier: Apache-2.0 */
/* Recordings, as CUDA's graphs: what is put on a stream is captured, and launched again by one call. The table's
 * operations are fit for it: they start kernels and copy between places that stay, with arguments that travel by value,
 * and cuBLASLt works in the stream's own scratch. */
#include "cuda/device.h"
#include "cuda/stream.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>

struct kern_recording {
    cudaGraphExec_t graph;
};

/* What other threads do meanwhile is their affair. */
bool cuda_record(struct kern_stream *s)
{
    return s->status == KERN_OK && cudaStreamBeginCapture(s->handle, cudaStreamCaptureModeThreadLocal) == cudaSuccess;
}

struct kern_recording *cuda_recorded(struct kern_stream *s)
{
    struct kern_recording *r = calloc(1, sizeof(*r));
    cudaGraph_t graph = NULL;
    cudaError_t rc = cudaStreamEndCapture(s->handle, &graph);
    bool there = rc == cudaSuccess && r && s->status == KERN_OK &&
                 cudaGraphInstantiateWithFlags(&r->graph, graph, 0) == cudaSuccess;
    there = there &&
            cudaGraphUpload(r->graph, s->handle) == cudaSuccess; /* what it takes of the device's memory it takes now */
    if (graph)
        cudaGraphDestroy(graph);
    if (there)
        return r;
    cuda_recording_free(r);
    s->status = KERN_OK; /* nothing was done that could have failed */
    return NULL;
}

void cuda_replay(struct kern_recording *r, struct kern_stream *s)
{
    if (s->status)
        return;
    cudaError_t rc = cudaGraphLaunch(r->graph, s->handle);
    if (rc != cudaSuccess)
        cuda_fail(s, KERN_ERR_LIBRARY, "a graph: %s", cudaGetErrorString(rc));
}

void cuda_recording_free(struct kern_recording *r)
{
    if (r && r->graph)
        cudaGraphExecDestroy(r->graph);
    free(r);
}
