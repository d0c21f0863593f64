/* SPDX-License-Identifier: Apache-2.0 */
/* See hosted.h: CUDA graphs of a stream's work. Calls that must not be captured end the program or invalidate the
 * capture, as the documentation of the CUDA Runtime API says. */
#include "hosted_stream.h"

#include <stdlib.h>
#include <string.h>

struct piece {
    struct piece *next;
    hosted_work work;
    _Alignas(16) unsigned char what[];
};

struct CUgraph_st {
    struct piece *first, **end;
};

/* This thread's stream under capture, during which the thread must not allocate or wait. */
static _Thread_local struct CUstream_st *captured;

static void *must(void *p)
{
    if (!p)
        hosted_die("a graph", "no memory");
    return p;
}

void hosted_do(void *handle, hosted_work work, const void *what, size_t nbytes)
{
    struct CUstream_st *s = handle;
    if (!s->graph) {
        s->put++;
        work(what);
        return;
    }
    struct piece *p = must(malloc(sizeof(*p) + nbytes));
    p->next = NULL;
    p->work = work;
    memcpy(p->what, what, nbytes);
    *s->graph->end = p;
    s->graph->end = &p->next;
}

cudaError_t hosted_unfit(struct CUstream_st *s)
{
    struct CUstream_st *now = s && s->graph ? s : captured;
    if (!now)
        return cudaSuccess;
    now->spoilt = true;
    return cudaErrorStreamCaptureUnsupported;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode)
{
    const cudaError_t code = hosted_enter(__func__);
    if (code != cudaSuccess)
        return code;
    if (captured || s->graph || mode != cudaStreamCaptureModeThreadLocal)
        hosted_die(__func__, "within another, or in the way of other threads");
    s->graph = must(calloc(1, sizeof(*s->graph)));
    s->graph->end = &s->graph->first;
    s->spoilt = false;
    captured = s;
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    for (struct piece *p = graph->first, *next; p; p = next) {
        next = p->next;
        free(p);
    }
    free(graph);
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out)
{
    if (captured != s)
        hosted_die(__func__, "not begun by this thread");
    struct CUgraph_st *graph = s->graph;
    const cudaError_t code = hosted_enter(__func__);
    s->graph = NULL;
    captured = NULL;
    *out = NULL;
    if (code == cudaSuccess && !s->spoilt)
        *out = graph;
    else
        cudaGraphDestroy(graph);
    return code != cudaSuccess ? code : s->spoilt ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
}

/* Takes the commands out of the graph, which is not used otherwise. */
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags)
{
    const cudaError_t code = flags ? cudaErrorInvalidValue : hosted_enter(__func__);
    if (code != cudaSuccess)
        return code;
    struct CUgraph_st *exec = must(calloc(1, sizeof(*exec)));
    exec->first = graph->first;
    graph->first = NULL;
    *out = (cudaGraphExec_t)exec;
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t s)
{
    if (!exec || s->graph)
        hosted_die(__func__, "no graph, or within a capture");
    return hosted_enter(__func__);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    return cudaGraphDestroy((cudaGraph_t)exec);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s)
{
    const cudaError_t code = hosted_enter(__func__);
    if (code != cudaSuccess)
        return code;
    if (s->graph)
        hosted_die(__func__, "into a capture");
    for (struct piece *p = ((struct CUgraph_st *)exec)->first; p; p = p->next)
        p->work(p->what);
    s->put++;
    return cudaSuccess;
}
