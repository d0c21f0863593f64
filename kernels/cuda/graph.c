/* SPDX-License-Identifier: Apache-2.0 */
/* Recordings, as CUDA graphs: work enqueued on a stream is captured, and one call launches it again. All operations of
 * the table can be captured: they launch kernels and copy between fixed addresses, pass arguments by value, and
 * cuBLASLt works in the stream's own scratch. */
#include "cuda/device.h"
#include "cuda/stream.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>

struct kern_recording {
    cudaGraphExec_t graph;
};

/* Captures this thread only; other threads may call the runtime meanwhile. */
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
    there = there && cudaGraphUpload(r->graph, s->handle) == cudaSuccess; /* allocates memory now, not at launch */
    if (graph)
        cudaGraphDestroy(graph);
    if (there)
        return r;
    cuda_recording_free(r);
    s->status = KERN_OK; /* the captured work did not run, so nothing failed */
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
