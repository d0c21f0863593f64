/* SPDX-License-Identifier: Apache-2.0 */
/* Streams and events of the CUDA runtime. Faults that kernels find stay in device memory until a synchronisation. */
#include "cuda/stream.h"

#include "cuda/device.h"
#include "cuda/matmul.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/experts.h"
#include "cuda/images.h"
#include "cuda/ops.h"

enum { SCRATCH_AND_PANEL_BYTES = CUDA_SCRATCH_BYTES + CUDA_PANEL_BYTES };

struct kern_event {
    cudaEvent_t event;
    int index; /* device number */
};

int cuda_use(int index)
{
    static _Thread_local int used = -1;
    const cudaError_t rc = used == index ? cudaSuccess : cudaSetDevice(index);
    used = rc == cudaSuccess ? index : -1;
    return (int)rc;
}

int cuda_error_message(char *message, const char *what, int code)
{
    snprintf(message, KERN_MESSAGE_BYTES, "%s: %s", what, cudaGetErrorString((cudaError_t)code));
    return code == cudaErrorMemoryAllocation ? KERN_ERR_MEMORY : KERN_ERR_LIBRARY;
}

int cuda_memory_message(char *message, const char *what, size_t nbytes, int index, int code)
{
    size_t nfree = 0, total = 0;
    int rc = cuda_error_message(message, what, code);
    if (rc == KERN_ERR_MEMORY && cudaMemGetInfo(&nfree, &total) == cudaSuccess)
        snprintf(message, KERN_MESSAGE_BYTES, "%s of %zu bytes on device %d, which has %zu free of %zu", what, nbytes,
                 index, nfree, total);
    return rc;
}

static cudaStream_t handle_of(const struct kern_stream *s)
{
    return s->handle;
}

/* Records a failure of the runtime; the first one wins. */
static void check(struct kern_stream *s, const char *what, cudaError_t code)
{
    if (code != cudaSuccess)
        cuda_fail(s, code == cudaErrorMemoryAllocation ? KERN_ERR_MEMORY : KERN_ERR_LIBRARY, "%s: %s", what,
                  cudaGetErrorString(code));
}

void cuda_read_back(struct kern_stream *s, void *host, const void *from, size_t nbytes)
{
    cuda_use(s->index);
    if (!s->status)
        check(s, "a copy to the host", cudaMemcpyAsync(host, from, nbytes, cudaMemcpyDeviceToHost, handle_of(s)));
    if (!s->status)
        check(s, "a copy to the host", cudaStreamSynchronize(handle_of(s)));
    if (s->status)
        memset(host, 0, nbytes);
}

static void stream_free(struct kern_stream *s)
{
    if (!s)
        return;
    cuda_use(s->index);
    if (s->handle) {
        cudaStreamSynchronize(handle_of(s));
        cudaStreamDestroy(handle_of(s));
    }
    cuda_matmuls_free(s->matmuls);
    cudaFree(s->scratch);
    cudaFree(s->fault);
    free(s);
}

/* FSDPTRAIN_CUDA_WARPGROUPS=0 makes Hopper use the kernels of older devices, for comparison. */
static bool without_warpgroups(void)
{
    const char *value = getenv("FSDPTRAIN_CUDA_WARPGROUPS");
    return value && strcmp(value, "0") == 0;
}

static cudaError_t make_handle(bool goes_ahead, cudaStream_t *out)
{
    int least = 0, greatest = 0;
    cudaError_t rc = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    return rc == cudaSuccess ? cudaStreamCreateWithPriority(out, cudaStreamNonBlocking, goes_ahead ? greatest : least)
                             : rc;
}

static cudaError_t take_scratch(struct kern_stream *s)
{
    cudaError_t rc = cudaMalloc(&s->scratch, SCRATCH_AND_PANEL_BYTES);
    if (rc != cudaSuccess)
        return rc;
    s->scratch_nbytes = CUDA_SCRATCH_BYTES;
    s->panel = (char *)s->scratch + CUDA_SCRATCH_BYTES;
    s->panel_nbytes = CUDA_PANEL_BYTES;
    return cudaSuccess;
}

static cudaError_t fill(struct kern_stream *s, bool goes_ahead)
{
    cudaStream_t handle = NULL;
    void *fault = NULL;
    int major = 0;
    cudaError_t rc = (cudaError_t)cuda_use(s->index);
    if (rc == cudaSuccess)
        rc = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, s->index);
    s->warpgroups = major == 9 && !without_warpgroups();
    if (rc == cudaSuccess)
        rc = make_handle(goes_ahead, &handle);
    s->handle = handle;
    if (rc == cudaSuccess)
        rc = cudaMalloc(&fault, sizeof(*s->fault));
    s->fault = fault;
    if (rc == cudaSuccess)
        rc = cudaMemsetAsync(fault, 0, sizeof(*s->fault), handle);
    if (rc == cudaSuccess && !goes_ahead)
        rc = take_scratch(s);
    return rc == cudaSuccess ? cudaStreamSynchronize(handle) : rc;
}

static int stream_new(int index, struct kern_pool *pool, struct kern_stream **out, char *message)
{
    struct kern_stream *s = calloc(1, sizeof(*s));
    if (!s) {
        snprintf(message, KERN_MESSAGE_BYTES, "no memory for a stream");
        return KERN_ERR_MEMORY;
    }
    s->index = index;
    const bool goes_ahead = !pool;
    cudaError_t code = fill(s, goes_ahead);
    int rc = code == cudaSuccess
                 ? KERN_OK
                 : cuda_memory_message(message, "a stream", goes_ahead ? sizeof(*s->fault) : SCRATCH_AND_PANEL_BYTES,
                                       index, code);
    if (rc == KERN_OK && !goes_ahead)
        rc = cuda_matmuls_new(&s->matmuls, message);
    if (rc == KERN_OK)
        *out = s;
    else
        stream_free(s);
    return rc;
}

static int stream_status(struct kern_stream *s, char *message)
{
    cuda_use(s->index);
    cudaError_t code = cudaStreamQuery(handle_of(s));
    if (code != cudaErrorNotReady)
        check(s, "work on the device", code);
    if (s->status)
        snprintf(message, KERN_MESSAGE_BYTES, "%s", s->message);
    return s->status;
}

static int stream_sync(struct kern_stream *s, char *message)
{
    struct cuda_fault found = { 0 };
    cuda_use(s->index);
    check(s, "work on the device",
          cudaMemcpyAsync(&found, s->fault, sizeof(found), cudaMemcpyDeviceToHost, handle_of(s)));
    check(s, "work on the device", cudaStreamSynchronize(handle_of(s)));
    cuda_fault_report(s, &found);
    if (found.kind)
        check(s, "work on the device", cudaMemsetAsync(s->fault, 0, sizeof(found), handle_of(s)));
    int status = s->status;
    if (status)
        snprintf(message, KERN_MESSAGE_BYTES, "%s", s->message);
    s->status = KERN_OK;
    return status;
}

static int event_new(int index, bool timed, struct kern_event **out, char *message)
{
    struct kern_event *e = calloc(1, sizeof(*e));
    if (!e) {
        snprintf(message, KERN_MESSAGE_BYTES, "no memory for an event");
        return KERN_ERR_MEMORY;
    }
    e->index = index;
    cudaError_t code = (cudaError_t)cuda_use(index);
    if (code == cudaSuccess)
        code = cudaEventCreateWithFlags(&e->event, timed ? cudaEventDefault : cudaEventDisableTiming);
    if (code != cudaSuccess) {
        free(e);
        return cuda_error_message(message, "an event", code);
    }
    *out = e;
    return KERN_OK;
}

static void event_free(struct kern_event *e)
{
    if (e)
        cudaEventDestroy(e->event);
    free(e);
}

static void event_record(struct kern_event *e, struct kern_stream *s)
{
    cuda_use(s->index);
    check(s, "an event", cudaEventRecord(e->event, handle_of(s)));
}

static void event_wait(struct kern_event *e, struct kern_stream *s)
{
    cuda_use(s->index);
    check(s, "waiting for an event", cudaStreamWaitEvent(handle_of(s), e->event, 0));
}

static int event_sync(struct kern_event *e)
{
    cuda_use(e->index);
    return cudaEventSynchronize(e->event) == cudaSuccess ? KERN_OK : KERN_ERR_LIBRARY;
}

static uint64_t event_elapsed_ns(struct kern_event *from, struct kern_event *to)
{
    float ms = 0;
    return cudaEventElapsedTime(&ms, from->event, to->event) == cudaSuccess ? (uint64_t)(1e6 * (double)ms) : 0;
}

const struct kern_device cuda_device = {
    .name = "cuda",
    .separate_memory = true,
    .row_unit = 128,
    .ops = &cuda_ops,
    .memory = &cuda_memory,
    .experts = &cuda_expert_ops,
    .images = &cuda_image_ops,
    .stream_new = stream_new,
    .stream_free = stream_free,
    .stream_sync = stream_sync,
    .stream_status = stream_status,
    .record = cuda_record,
    .recorded = cuda_recorded,
    .replay = cuda_replay,
    .recording_free = cuda_recording_free,
    .event_new = event_new,
    .event_free = event_free,
    .event_record = event_record,
    .event_wait = event_wait,
    .event_sync = event_sync,
    .event_elapsed_ns = event_elapsed_ns,
};
