/* SPDX-License-Identifier: Apache-2.0 */
/* See hosted.h: the CUDA runtime. The documentation of the CUDA Runtime API says which calls require which current
 * device. */
#include "hosted_stream.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MOST_BLOCKS = 4096, LIVE = 0x6c697665, ALIGNMENT = 256, LEAST_PRIORITY = 0, GREATEST_PRIORITY = -5 };

struct CUevent_st {
    int live, device;
    bool timed;
    uint64_t ns; /* 0: not recorded */
    struct CUstream_st *stream;
    uint64_t at; /* number of its command */
};

struct block {
    char *data;
    size_t nbytes;
    int device; /* -1: registered host memory */
};

static struct {
    pthread_mutex_t lock, kernel;
    struct block blocks[MOST_BLOCKS];
    size_t used[HOSTED_DEVICES];
    pid_t started;  /* process that started the driver */
    bool elsewhere; /* a thread chose a device other than the first */
    cudaError_t broken;
} all = { .lock = PTHREAD_MUTEX_INITIALIZER, .kernel = PTHREAD_MUTEX_INITIALIZER };

static _Thread_local int current; /* the first, until the thread chooses one */
static _Thread_local bool chose;
static _Thread_local cudaError_t last;

static uint64_t asked(const char *name, uint64_t otherwise)
{
    const char *value = getenv(name);
    return value ? strtoull(value, NULL, 10) : otherwise;
}

/* Returns true for errors that are not sticky: out of memory, or an impossible capture. */
static bool passes(int code)
{
    return code == cudaErrorMemoryAllocation ||
           (code >= cudaErrorStreamCaptureUnsupported && code <= cudaErrorStreamCaptureWrongThread);
}

/* Common start of a call: returns its injected or sticky error. After any other failure than a lack of memory a device
 * stays failed. A forked process has no driver. */
static cudaError_t enter(const char *name)
{
    pthread_mutex_lock(&all.lock);
    if (!all.started)
        all.started = getpid();
    const bool forked = all.started != getpid();
    pthread_mutex_unlock(&all.lock);
    if (forked)
        return cudaErrorInitializationError;
    const int code = hosted_fails(name, current);
    if (code > 0 && !passes(code))
        __atomic_store_n(&all.broken, (cudaError_t)code, __ATOMIC_RELAXED);
    return code > 0 ? (cudaError_t)code : __atomic_load_n(&all.broken, __ATOMIC_RELAXED);
}

cudaError_t hosted_enter(const char *call)
{
    return last = enter(call);
}

#define ENTER \
    do { \
        cudaError_t entered = enter(__func__); \
        if (entered != cudaSuccess) \
            return last = entered; \
    } while (0)

/* For calls that use the thread's device: all threads use one device, and a thread that chose none would create a
 * context on the first one, which costs memory there. */
static void want_device(const char *call)
{
    if (!chose && __atomic_load_n(&all.elsewhere, __ATOMIC_RELAXED))
        hosted_die(call, "in a thread that chose no device");
}

int hosted_current(void)
{
    return current;
}

static bool sees_one(void)
{
    return getenv("FSDPTRAIN_HOSTED_SEEN") != NULL;
}

int hosted_which(int device)
{
    const bool own = sees_one() && strcmp(getenv("FSDPTRAIN_HOSTED_SEEN"), "own") == 0;
    return device + (own ? (int)asked("OMPI_COMM_WORLD_LOCAL_RANK", 0) % HOSTED_DEVICES : 0);
}

void hosted_lock(void)
{
    pthread_mutex_lock(&all.kernel);
}

void hosted_unlock(void)
{
    pthread_mutex_unlock(&all.kernel);
}

/* --- memory */

/* Finds the block that contains p, or NULL. The caller holds the lock. */
static struct block *find(const void *p)
{
    for (struct block *b = all.blocks; b < all.blocks + MOST_BLOCKS; b++)
        if (b->data && (const char *)p >= b->data && (const char *)p < b->data + b->nbytes)
            return b;
    return NULL;
}

static void keep(const char *call, void *data, size_t nbytes, int device)
{
    pthread_mutex_lock(&all.lock);
    struct block *b = all.blocks;
    while (b < all.blocks + MOST_BLOCKS && b->data)
        b++;
    if (b == all.blocks + MOST_BLOCKS)
        hosted_die(call, "too many blocks");
    *b = (struct block){ data, nbytes, device };
    if (device >= 0)
        all.used[device] += nbytes;
    pthread_mutex_unlock(&all.lock);
}

/* Removes the block that begins at p. of_device: whether it must be a device's. */
static void forget(const char *call, void *p, bool of_device)
{
    pthread_mutex_lock(&all.lock);
    struct block *b = find(p);
    if (!b || b->data != p || (b->device >= 0) != of_device)
        hosted_die(call, "of what was not given");
    if (of_device)
        all.used[b->device] -= b->nbytes;
    b->data = NULL;
    pthread_mutex_unlock(&all.lock);
}

void hosted_reach(const char *call, const void *p, size_t nbytes, int device)
{
    pthread_mutex_lock(&all.lock);
    const struct block *b = find(p);
    if (b && (const char *)p + nbytes > b->data + b->nbytes)
        hosted_die(call, "beyond the end of its memory");
    if (device >= 0 && nbytes > 0 && (!b || b->device != device))
        hosted_die(call, "not the memory of its device");
    pthread_mutex_unlock(&all.lock);
}

cudaError_t cudaMalloc(void **out, size_t nbytes)
{
    want_device(__func__);
    ENTER;
    if (hosted_unfit(NULL) != cudaSuccess)
        return last = cudaErrorStreamCaptureUnsupported;
    const size_t whole = (nbytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (all.used[current] + whole > asked("FSDPTRAIN_HOSTED_FREE", (uint64_t)8 << 30))
        return last = cudaErrorMemoryAllocation;
    *out = aligned_alloc(ALIGNMENT, whole);
    if (!*out)
        return last = cudaErrorMemoryAllocation;
    memset(*out, 0xff, whole); /* NaN for reads before the first write */
    keep(__func__, *out, nbytes, current);
    return cudaSuccess;
}

/* Memory that both can reach counts as the device's here. */
cudaError_t cudaMallocManaged(void **out, size_t nbytes, unsigned flags)
{
    return flags == cudaMemAttachGlobal ? cudaMalloc(out, nbytes) : cudaErrorInvalidValue;
}

cudaError_t cudaFree(void *p)
{
    want_device(__func__);
    if (!p)
        return cudaSuccess;
    forget(__func__, p, true);
    free(p);
    ENTER;
    return last = hosted_unfit(NULL);
}

cudaError_t cudaHostRegister(void *p, size_t nbytes, unsigned flags)
{
    want_device(__func__);
    ENTER;
    (void)flags;
    pthread_mutex_lock(&all.lock);
    const bool known = find(p) != NULL;
    pthread_mutex_unlock(&all.lock);
    if (known)
        return last = cudaErrorHostMemoryAlreadyRegistered;
    keep(__func__, p, nbytes, -1);
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *p)
{
    want_device(__func__);
    forget(__func__, p, false);
    ENTER;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *nfree, size_t *total)
{
    want_device(__func__);
    ENTER;
    *total = asked("FSDPTRAIN_HOSTED_FREE", (uint64_t)8 << 30);
    *nfree = *total - all.used[current];
    return cudaSuccess;
}

/* --- devices */

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = hosted_fails(__func__, current) ? 0 : 13000;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = 13000;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *n)
{
    ENTER;
    *n = sees_one() ? 1 : HOSTED_DEVICES;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    chose = true; /* even if it fails: the caller must then stop */
    ENTER;
    if (device < 0 || hosted_which(device) >= HOSTED_DEVICES)
        return last = cudaErrorInvalidDevice;
    current = device;
    if (device != 0)
        __atomic_store_n(&all.elsewhere, true, __ATOMIC_RELAXED);
    return cudaSuccess;
}

static int major(void)
{
    return (int)asked("FSDPTRAIN_HOSTED_MAJOR", 9);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int device)
{
    ENTER;
    memset(out, 0, sizeof(*out));
    snprintf(out->name, sizeof(out->name), "hosted %d", device);
    out->major = major();
    out->uuid.bytes[0] = (char)(hosted_which(device) + 1);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    ENTER;
    if (attribute != cudaDevAttrComputeCapabilityMajor || device < 0 || device >= HOSTED_DEVICES)
        return last = cudaErrorInvalidValue;
    *value = major();
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    want_device(__func__);
    ENTER;
    return last = hosted_unfit(NULL);
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t code = last;
    last = cudaSuccess;
    return code;
}

const char *cudaGetErrorString(cudaError_t code)
{
    static _Thread_local char text[32];
    snprintf(text, sizeof(text), "hosted error %d", (int)code);
    return text;
}

/* --- streams: copies work from any current device, kernels need the stream's */

static struct CUstream_st *stream_of(const char *call, cudaStream_t s)
{
    if (!s || s->live != LIVE)
        hosted_die(call, "no stream");
    return s;
}

int hosted_start(void *handle)
{
    const cudaError_t entered = enter("kernel");
    if (entered != cudaSuccess)
        return (int)entered;
    return hosted_stream_device(handle) == current ? 0 : (int)cudaErrorInvalidResourceHandle;
}

int hosted_stream_device(void *handle)
{
    return stream_of("a stream's device", handle)->device;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    ENTER;
    *least = LEAST_PRIORITY;
    *greatest = GREATEST_PRIORITY;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority)
{
    want_device(__func__);
    ENTER;
    if (flags != cudaStreamNonBlocking || priority < GREATEST_PRIORITY || priority > LEAST_PRIORITY)
        hosted_die(__func__, "a stream that waits for the default stream, or of no priority");
    *out = malloc(sizeof(**out));
    if (!*out)
        return last = cudaErrorMemoryAllocation;
    **out = (struct CUstream_st){ .live = LIVE, .device = current };
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    want_device(__func__);
    stream_of(__func__, s)->live = 0; /* not freed, because events may still refer to it */
    hosted_tell_counts();
    ENTER;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    want_device(__func__);
    stream_of(__func__, s)->done = s->put;
    ENTER;
    return last = hosted_unfit(s);
}

cudaError_t cudaStreamQuery(cudaStream_t s)
{
    want_device(__func__);
    const bool busy = stream_of(__func__, s)->done < s->put;
    s->done = s->put;
    ENTER;
    return last = busy ? cudaErrorNotReady : hosted_unfit(s);
}

/* --- copies */

struct change {
    void *dst;
    const void *src;
    int value;
    size_t nbytes;
};

static void copy(const void *what)
{
    const struct change *c = what;
    memcpy(c->dst, c->src, c->nbytes);
}

static void fill(const void *what)
{
    const struct change *c = what;
    memset(c->dst, c->value, c->nbytes);
}

/* Refuses captures of host memory: a graph would read it at launch. */
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t nbytes, enum cudaMemcpyKind kind, cudaStream_t s)
{
    want_device(__func__);
    const struct change change = { .dst = dst, .src = src, .nbytes = nbytes };
    const int device = stream_of(__func__, s)->graph ? s->device : -1;
    (void)kind;
    hosted_reach(__func__, dst, nbytes, device);
    hosted_reach(__func__, src, nbytes, device);
    ENTER;
    hosted_do(s, copy, &change, sizeof(change));
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *dst, int value, size_t nbytes, cudaStream_t s)
{
    want_device(__func__);
    const struct change change = { .dst = dst, .value = value, .nbytes = nbytes };
    hosted_reach(__func__, dst, nbytes, stream_of(__func__, s)->device);
    ENTER;
    hosted_do(s, fill, &change, sizeof(change));
    return cudaSuccess;
}

cudaError_t cudaMemset(void *dst, int value, size_t nbytes)
{
    hosted_reach(__func__, dst, nbytes, current);
    ENTER;
    memset(dst, value, nbytes);
    return cudaSuccess;
}

/* --- events: recorded on streams of their own device, waited for from any */

static struct CUevent_st *event_of(const char *call, cudaEvent_t e)
{
    if (!e || e->live != LIVE)
        hosted_die(call, "no event");
    return e;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    want_device(__func__);
    ENTER;
    *out = malloc(sizeof(**out));
    if (!*out)
        return last = cudaErrorMemoryAllocation;
    **out = (struct CUevent_st){ .live = LIVE, .device = current, .timed = !(flags & cudaEventDisableTiming) };
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    want_device(__func__);
    event_of(__func__, e)->live = 0;
    free(e);
    ENTER;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    want_device(__func__);
    struct timespec now;
    ENTER;
    if (event_of(__func__, e)->device != stream_of(__func__, s)->device)
        return last = cudaErrorInvalidResourceHandle;
    if (s->graph)
        hosted_die(__func__, "in a graph");
    clock_gettime(CLOCK_MONOTONIC, &now);
    e->ns = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
    e->stream = s;
    e->at = s->put;
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags)
{
    want_device(__func__);
    (void)flags;
    if (stream_of(__func__, s)->graph)
        hosted_die(__func__, "in a graph");
    event_of(__func__, e);
    ENTER;
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    want_device(__func__);
    if (event_of(__func__, e)->ns && e->stream->done < e->at)
        e->stream->done = e->at;
    ENTER;
    return cudaSuccess;
}

static bool is_under_way(const struct CUevent_st *e)
{
    return e->stream->done < e->at;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    want_device(__func__);
    ENTER;
    if (!event_of(__func__, from)->ns || !event_of(__func__, to)->ns || !from->timed || !to->timed)
        return last = cudaErrorInvalidResourceHandle;
    if (is_under_way(from) || is_under_way(to))
        return last = cudaErrorNotReady;
    *ms = (float)((double)(to->ns - from->ns) / 1e6);
    return cudaSuccess;
}
