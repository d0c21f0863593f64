/* SPDX-License-Identifier: Apache-2.0 */
/* Communication by NCCL. The library is large and a single rank does not need it, so it is loaded when ranks are
 * linked. Communicators are non-blocking, so that a rank which waits for others notices when one of them is gone. */
#include <kernels/link.h>

#include "cuda/device.h"
#include "cuda/stream.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { NAP_NS = 1000000, EAGER_NS = 2000000 };

_Static_assert(KERN_LINK_ID_BYTES == NCCL_UNIQUE_ID_BYTES, "an id is NCCL's");

/* The NCCL functions that are used. */
#define CALLS(X) \
    X(ncclGetUniqueId) \
    X(ncclCommInitRankConfig) \
    X(ncclCommGetAsyncError) \
    X(ncclCommAbort) \
    X(ncclCommDestroy) \
    X(ncclCommFinalize) \
    X(ncclGroupStart) \
    X(ncclGroupEnd) \
    X(ncclAllGather) \
    X(ncclSend) \
    X(ncclRecv) \
    X(ncclGetErrorString) \
    X(ncclGetLastError)

static struct {
    pthread_mutex_t lock;
    void *library;
#define POINTER(name) __typeof__(&name) name;
    CALLS(POINTER)
#undef POINTER
} nccl = { .lock = PTHREAD_MUTEX_INITIALIZER };

struct kern_link {
    ncclComm_t comm; /* NULL: aborted, or never created */
    pthread_mutex_t lock;
    int status;
    char message[KERN_MESSAGE_BYTES];
    bool grouped; /* between begin and end, with the lock held: abort cannot free the communicator while a group is
                     open. (None of these calls waits.) */
    bool (*broken)(void *ctx);
    void *ctx;
};

static bool find_calls(void)
{
    bool all = true;
#define FIND(name) \
    do { \
        void *symbol = dlsym(nccl.library, #name); \
        memcpy(&nccl.name, &symbol, sizeof(symbol)); \
        all &= symbol != NULL; \
    } while (0);
    CALLS(FIND)
#undef FIND
    return all;
}

static int load(char *message)
{
    pthread_mutex_lock(&nccl.lock);
    if (!nccl.library) {
        nccl.library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
        if (nccl.library && !find_calls()) {
            dlclose(nccl.library);
            nccl.library = NULL;
        }
    }
    bool loaded = nccl.library != NULL;
    pthread_mutex_unlock(&nccl.lock);
    if (!loaded)
        snprintf(message, KERN_MESSAGE_BYTES, "libnccl.so.2 cannot be loaded, or is too old");
    return loaded ? KERN_OK : KERN_ERR_LIBRARY;
}

/* Records the first failure, with the first line of NCCL's last warning. The caller holds the lock. */
static void fail(struct kern_link *l, const char *what, ncclResult_t code)
{
    const char *more = nccl.ncclGetLastError(NULL);
    const int length = more ? (int)strcspn(more, "\n") : 0;
    if (l->status)
        return;
    l->status = KERN_ERR_LIBRARY;
    snprintf(l->message, sizeof(l->message), "%s: %s%s%.*s", what, nccl.ncclGetErrorString(code), length ? "; " : "",
             length, length ? more : "");
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* NCCL hands a launch to a thread of its own, which takes some ten microseconds, so spin first. Connecting takes as
 * long as the other ranks need, so sleep later. */
static void pause_since(uint64_t since)
{
    const struct timespec nap = { 0, NAP_NS };
    if (now_ns() - since < EAGER_NS)
        sched_yield();
    else
        nanosleep(&nap, NULL);
}

/* Waits until NCCL has accepted a non-blocking call on the communicator, or the communicator has failed. */
static void wait_for_nccl(struct kern_link *l, const char *what, ncclResult_t code)
{
    const uint64_t since = now_ns();
    pthread_mutex_lock(&l->lock);
    while (code == ncclInProgress && l->comm && !l->status) {
        ncclResult_t asked = nccl.ncclCommGetAsyncError(l->comm, &code);
        code = asked == ncclSuccess ? code : asked;
        if (code == ncclInProgress) {
            pthread_mutex_unlock(&l->lock);
            pause_since(since);
            bool over = l->broken(l->ctx);
            pthread_mutex_lock(&l->lock);
            code = over ? ncclRemoteError : code;
        }
    }
    if (code != ncclSuccess && code != ncclInProgress)
        fail(l, what, code);
    pthread_mutex_unlock(&l->lock);
}

static int make_id(unsigned char *id, char *message)
{
    ncclUniqueId made;
    int rc = load(message);
    if (rc != KERN_OK)
        return rc;
    ncclResult_t code = nccl.ncclGetUniqueId(&made);
    if (code != ncclSuccess) {
        snprintf(message, KERN_MESSAGE_BYTES, "no id: %s", nccl.ncclGetErrorString(code));
        return KERN_ERR_LIBRARY;
    }
    memcpy(id, made.internal, KERN_LINK_ID_BYTES);
    return KERN_OK;
}

static int link_status(struct kern_link *l, char *message)
{
    ncclResult_t code = ncclSuccess;
    pthread_mutex_lock(&l->lock);
    if (l->comm && !l->status && nccl.ncclCommGetAsyncError(l->comm, &code) == ncclSuccess && code != ncclSuccess &&
        code != ncclInProgress)
        fail(l, "a link failed", code);
    int status = l->status;
    if (status)
        memcpy(message, l->message, sizeof(l->message));
    pthread_mutex_unlock(&l->lock);
    return status;
}

static void link_abort(struct kern_link *l)
{
    pthread_mutex_lock(&l->lock);
    ncclComm_t comm = l->comm;
    l->comm = NULL;
    if (!l->status) {
        l->status = KERN_ERR_LIBRARY;
        snprintf(l->message, sizeof(l->message), "the link was ended");
    }
    pthread_mutex_unlock(&l->lock);
    if (comm)
        nccl.ncclCommAbort(comm);
}

static void link_close(struct kern_link *l)
{
    if (!l)
        return;
    if (l->comm && !l->status)
        wait_for_nccl(l, "the end of a link", nccl.ncclCommFinalize(l->comm));
    if (l->comm && !l->status)
        nccl.ncclCommDestroy(l->comm);
    else
        link_abort(l); /* do not wait for ranks that no longer answer */
    pthread_mutex_destroy(&l->lock);
    free(l);
}

static int link_open(const unsigned char *id, uint32_t rank, uint32_t nranks, int index, bool (*broken)(void *ctx),
                     void *ctx, struct kern_link **out, char *message)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId theirs;
    struct kern_link *l = NULL;
    int rc = load(message);
    if (rc != KERN_OK)
        return rc;
    l = calloc(1, sizeof(*l));
    if (!l) {
        snprintf(message, KERN_MESSAGE_BYTES, "no memory for a link");
        return KERN_ERR_MEMORY;
    }
    pthread_mutex_init(&l->lock, NULL);
    l->broken = broken;
    l->ctx = ctx;
    config.blocking = 0;
    memcpy(theirs.internal, id, KERN_LINK_ID_BYTES);
    cudaError_t set = (cudaError_t)cuda_use(index);
    ncclResult_t code = set == cudaSuccess
                            ? nccl.ncclCommInitRankConfig(&l->comm, (int)nranks, theirs, (int)rank, &config)
                            : ncclUnhandledCudaError;
    wait_for_nccl(l, "its communicator", code);
    rc = link_status(l, message);
    if (rc == KERN_OK)
        *out = l;
    else
        link_close(l);
    return rc;
}

static void begin(struct kern_link *l)
{
    pthread_mutex_lock(&l->lock);
    l->grouped = l->comm && !l->status;
    ncclResult_t code = l->grouped ? nccl.ncclGroupStart() : ncclSuccess;
    if (code != ncclSuccess) {
        fail(l, "an operation between devices", code);
        l->grouped = false;
    }
    if (!l->grouped)
        pthread_mutex_unlock(&l->lock);
}

static void end(struct kern_link *l, struct kern_stream *s)
{
    char message[KERN_MESSAGE_BYTES];
    if (l->grouped) {
        ncclResult_t code = nccl.ncclGroupEnd();
        l->grouped = false;
        pthread_mutex_unlock(&l->lock);
        wait_for_nccl(l, "an operation between devices", code);
    }
    if (link_status(l, message) != KERN_OK)
        cuda_fail(s, KERN_ERR_LIBRARY, "%s", message);
}

/* Inside a group no operation has started yet, so ncclInProgress is no failure. */
static void check(struct kern_link *l, const char *what, ncclResult_t code)
{
    if (code != ncclSuccess && code != ncclInProgress)
        fail(l, what, code);
}

static void all_gather(struct kern_link *l, struct kern_stream *s, void *dst, const void *src, size_t nbytes)
{
    if (l->grouped && !l->status && nbytes)
        check(l, "a gather between devices", nccl.ncclAllGather(src, dst, nbytes, ncclUint8, l->comm, s->handle));
}

static void send(struct kern_link *l, struct kern_stream *s, const void *data, size_t nbytes, uint32_t to)
{
    if (l->grouped && !l->status && nbytes)
        check(l, "sending between devices", nccl.ncclSend(data, nbytes, ncclUint8, (int)to, l->comm, s->handle));
}

static void receive(struct kern_link *l, struct kern_stream *s, void *data, size_t nbytes, uint32_t from)
{
    if (l->grouped && !l->status && nbytes)
        check(l, "receiving between devices", nccl.ncclRecv(data, nbytes, ncclUint8, (int)from, l->comm, s->handle));
}

const struct kern_links cuda_links = { .name = "NCCL",
                                       .make_id = make_id,
                                       .open = link_open,
                                       .close = link_close,
                                       .abort = link_abort,
                                       .status = link_status,
                                       .begin = begin,
                                       .all_gather = all_gather,
                                       .send = send,
                                       .receive = receive,
                                       .end = end };
