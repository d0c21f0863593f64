/* SPDX-License-Identifier: Apache-2.0 */
/* See hosted.h: NCCL for ranks of one host. Communicators are non-blocking: an operation is in flight when its call
 * returns, and advances when its status is polled. Two ranks on one device are rejected, as by NCCL. */
#include "boxes.h"
#include "hosted.h"

#include <nccl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { TRIES = 2000 };

struct ncclComm {
    struct boxes boxes;
    struct posts posts;
    uint64_t turn;
    pthread_mutex_t lock;            /* a thread may poll while another one is inside */
    int device;                      /* as the process counts devices */
    int which, all[BOXES_MAX_RANKS]; /* numbers among all devices: which: this rank's; all: every rank's */
    bool opened;                     /* all ranks have joined */
    bool aborted;
    ncclResult_t state;
};

static const struct ncclComm nothing = { .lock = PTHREAD_MUTEX_INITIALIZER,
                                         .boxes = { .die = hosted_die },
                                         .state = ncclInProgress };

static _Thread_local int depth;                /* nesting of groups */
static _Thread_local struct ncclComm *grouped; /* communicator used by the open group */

#define ENTER \
    do { \
        const int code = hosted_fails(__func__, hosted_current()); \
        if (code) \
            return (ncclResult_t)code; \
    } while (0)

const char *ncclGetErrorString(ncclResult_t code)
{
    return code == ncclInvalidUsage  ? "hosted: invalid usage"
           : code == ncclRemoteError ? "hosted: remote error"
                                     : "hosted: failed";
}

const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm;
    return "as told to\nand more";
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    ENTER;
    return getrandom(id->internal, sizeof(id->internal), 0) == sizeof(id->internal) ? ncclSuccess : ncclSystemError;
}

/* Exchanges one part with every rank, in both directions. */
static void ask(struct ncclComm *c, bool gathers, const char *mine, char *theirs, size_t nbytes)
{
    for (uint32_t r = 0; r < c->boxes.nranks; r++) {
        posts_add(&c->posts, &(struct post){ true, r, (char *)mine, { c->turn, gathers, nbytes }, 0 });
        posts_add(&c->posts, &(struct post){ false, r, theirs + r * nbytes, { c->turn, gathers, nbytes }, 0 });
    }
}

static void opened(struct ncclComm *c)
{
    c->opened = true;
    boxes_shut(&c->boxes);
    for (uint32_t r = 0; r < c->boxes.nranks; r++)
        if (r != c->boxes.rank && c->all[r] == c->which)
            c->state = ncclInvalidUsage;
}

static void finished(struct ncclComm *c)
{
    c->posts.n = 0;
    c->turn++;
    c->state = ncclSuccess;
    if (!c->opened)
        opened(c);
}

/* Advances the operation in flight, if any. failure: an error to record, or ncclSuccess. */
static ncclResult_t go_on(struct ncclComm *c, ncclResult_t failure)
{
    bool left = true;
    pthread_mutex_lock(&c->lock);
    if (failure != ncclSuccess)
        c->state = failure;
    for (int i = 0; i < TRIES && left && c->state == ncclInProgress && !__atomic_load_n(&c->aborted, __ATOMIC_RELAXED);
         i++)
        boxes_pass(&c->boxes, c->posts.list, c->posts.n, &left);
    if (!left && c->state == ncclInProgress)
        finished(c);
    const ncclResult_t state = c->state;
    pthread_mutex_unlock(&c->lock);
    return state;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    ENTER;
    if (config->blocking != 0 || nranks < 2 || nranks > BOXES_MAX_RANKS || rank < 0 || rank >= nranks)
        return ncclInvalidArgument;
    struct ncclComm *c = calloc(1, sizeof(*c));
    if (!c)
        return ncclSystemError;
    *c = nothing;
    c->device = hosted_current();
    c->which = hosted_which(c->device);
    if (!boxes_open(&c->boxes, (const unsigned char *)id.internal, (uint32_t)rank, (uint32_t)nranks)) {
        free(c);
        return ncclSystemError;
    }
    ask(c, true, (const char *)&c->which, (char *)c->all, sizeof(c->which));
    *out = c;
    return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *state)
{
    *state = go_on(c, (ncclResult_t)hosted_fails(__func__, c->device));
    return ncclSuccess;
}

/* Does not free it, because another thread may still be inside. */
ncclResult_t ncclCommAbort(ncclComm_t c)
{
    __atomic_store_n(&c->aborted, true, __ATOMIC_RELAXED);
    boxes_shut(&c->boxes);
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t c)
{
    ENTER;
    return c->state;
}

ncclResult_t ncclCommDestroy(ncclComm_t c)
{
    boxes_close(&c->boxes);
    free(c->posts.list);
    free(c);
    return ncclSuccess;
}

ncclResult_t ncclGroupStart(void)
{
    ENTER;
    if (depth++ == 0)
        grouped = NULL;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    ENTER;
    if (depth == 0)
        return ncclInvalidUsage;
    if (--depth > 0 || !grouped || grouped->posts.n == 0)
        return ncclSuccess;
    pthread_mutex_lock(&grouped->lock);
    grouped->state = ncclInProgress;
    pthread_mutex_unlock(&grouped->lock);
    return go_on(grouped, ncclSuccess);
}

/* Returns ncclSuccess if a communicator accepts an operation on a stream. It must be in a group, as the caller uses
 * groups only. */
static ncclResult_t takes(struct ncclComm *c, ncclDataType_t type, cudaStream_t stream)
{
    if (depth == 0 || (grouped && grouped != c))
        hosted_die("NCCL", "an operation outside a group, or of another communicator's");
    grouped = c;
    return c->state != ncclSuccess || type != ncclUint8 || hosted_stream_device(stream) != c->device ? ncclInvalidUsage
                                                                                                     : ncclSuccess;
}

ncclResult_t ncclAllGather(const void *mine, void *all, size_t nbytes, ncclDataType_t type, ncclComm_t c,
                           cudaStream_t stream)
{
    ENTER;
    const ncclResult_t code = takes(c, type, stream);
    hosted_reach(__func__, mine, nbytes, c->device);
    hosted_reach(__func__, all, nbytes * c->boxes.nranks, c->device);
    if (code == ncclSuccess)
        ask(c, true, mine, all, nbytes);
    return code;
}

ncclResult_t ncclSend(const void *data, size_t nbytes, ncclDataType_t type, int peer, ncclComm_t c, cudaStream_t stream)
{
    ENTER;
    const ncclResult_t code = takes(c, type, stream);
    hosted_reach(__func__, data, nbytes, c->device);
    if (code == ncclSuccess)
        posts_add(&c->posts, &(struct post){ true, (uint32_t)peer, (char *)data, { c->turn, false, nbytes }, 0 });
    return code;
}

ncclResult_t ncclRecv(void *data, size_t nbytes, ncclDataType_t type, int peer, ncclComm_t c, cudaStream_t stream)
{
    ENTER;
    const ncclResult_t code = takes(c, type, stream);
    hosted_reach(__func__, data, nbytes, c->device);
    if (code == ncclSuccess)
        posts_add(&c->posts, &(struct post){ false, (uint32_t)peer, data, { c->turn, false, nbytes }, 0 });
    return code;
}
