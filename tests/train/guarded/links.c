/* SPDX-License-Identifier: Apache-2.0 */
/* Links between the guarded devices of ranks of one host, in place of NCCL, through memory that the ranks share.
 * Messages between two ranks arrive in the order in which they were sent. Everything between begin and end is one
 * operation, which runs late like all work on a stream. Another rank may wait for an operation that no thread waits for
 * here, so operations that have been pending for a while are run. Use that could deadlock NCCL ends the program with a
 * message: operations of a rank that could be in flight at the same time (from two threads, on two links or two
 * streams), and operations that two ranks start in different orders. */
#include "boxes.h"
#include "guarded.h"
#include "late.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <time.h>

enum { NAP_NS = 20000, PUSH_NS = 10000000 };

/* State of the ranks in this process. A rank's operations are ordered only because they use one link and one stream. */
static struct {
    _Atomic(struct kern_link *) link;
    _Atomic(struct kern_stream *) stream;
} ranks[BOXES_MAX_RANKS];

struct kern_link {
    struct boxes boxes;
    struct posts posts; /* of the open group */
    uint64_t turn;      /* number of operations begun */
    bool gathers;       /* the operation being built is an all-gather */
    _Atomic bool busy;  /* between begin and end */
    bool (*broken)(void *ctx);
    void *ctx;
    _Atomic bool aborted, closing;
    pthread_t pusher;
};

/* The operation that end appends to a stream. */
struct group {
    struct kern_link *link;
    struct post *posts;
    size_t nposts;
};

static int make_id(unsigned char *id, char *message)
{
    (void)message;
    return getrandom(id, KERN_LINK_ID_BYTES, 0) == KERN_LINK_ID_BYTES ? KERN_OK : KERN_ERR_SYSTEM;
}

/* Runs a stream whose work has not advanced since the last check. */
static void *push(void *arg)
{
    struct kern_link *l = arg;
    const struct timespec nap = { 0, PUSH_NS };
    for (uint64_t before = 0; !atomic_load(&l->closing); nanosleep(&nap, NULL)) {
        struct kern_stream *s = atomic_load(&ranks[l->boxes.rank].stream);
        const uint64_t done = s ? late_done(s) : 0;
        if (s && done == before)
            late_run(s);
        before = done;
    }
    return NULL;
}

static int link_open(const unsigned char *id, uint32_t rank, uint32_t nranks, int index, bool (*broken)(void *ctx),
                     void *ctx, struct kern_link **out, char *message)
{
    struct kern_link *l = calloc(1, sizeof *l);
    (void)index;
    *l = (struct kern_link){ .boxes = { .enter = guarded_enter, .leave = guarded_leave, .die = guarded_die },
                             .broken = broken,
                             .ctx = ctx };
    if (!boxes_open(&l->boxes, id, rank, nranks)) {
        snprintf(message, KERN_MESSAGE_BYTES, "no shared memory");
        free(l);
        return KERN_ERR_SYSTEM;
    }
    if (rank >= BOXES_MAX_RANKS || atomic_exchange(&ranks[rank].link, l))
        guarded_die("a rank has two links", "their operations can be under way at once");
    atomic_store(&ranks[rank].stream, NULL);
    if (pthread_create(&l->pusher, NULL, push, l))
        guarded_die("no thread", "link");
    *out = l;
    return KERN_OK;
}

static void link_close(struct kern_link *l)
{
    if (!l)
        return;
    struct kern_stream *s = atomic_load(&ranks[l->boxes.rank].stream);
    atomic_store(&l->closing, true);
    pthread_join(l->pusher, NULL);
    if (s)
        late_run(s);
    atomic_store(&ranks[l->boxes.rank].link, NULL);
    boxes_close(&l->boxes);
    free(l->posts.list);
    free(l);
}

static void link_abort(struct kern_link *l)
{
    atomic_store(&l->aborted, true);
    boxes_shut(&l->boxes);
}

static int link_status(struct kern_link *l, char *message)
{
    if (!atomic_load(&l->aborted))
        return KERN_OK;
    snprintf(message, KERN_MESSAGE_BYTES, "the link was ended");
    return KERN_ERR_LIBRARY;
}

static void begin(struct kern_link *l)
{
    if (atomic_exchange(&l->busy, true))
        guarded_die("two threads", "their operations are under way at once");
    l->turn++;
    l->posts.n = 0;
}

static void add(struct kern_link *l, bool sends, const void *data, size_t nbytes, uint32_t peer)
{
    posts_add(&l->posts,
              &(struct post){
                  .sends = sends, .peer = peer, .data = (char *)data, .letter = { l->turn, l->gathers, nbytes } });
}

static void send(struct kern_link *l, struct kern_stream *s, const void *data, size_t nbytes, uint32_t to)
{
    (void)s;
    guarded_must_own("send", data);
    add(l, true, data, nbytes, to);
}

static void receive(struct kern_link *l, struct kern_stream *s, void *data, size_t nbytes, uint32_t from)
{
    (void)s;
    guarded_must_own("receive", data);
    add(l, false, data, nbytes, from);
}

static void all_gather(struct kern_link *l, struct kern_stream *s, void *dst, const void *src, size_t nbytes)
{
    if (nbytes > 0)
        guarded_must_own("all_gather", (char *)dst + nbytes * l->boxes.nranks - 1);
    l->gathers = true;
    for (uint32_t r = 0; r < l->boxes.nranks; r++) {
        send(l, s, src, nbytes, r);
        receive(l, s, (char *)dst + r * nbytes, nbytes, r);
    }
    l->gathers = false;
}

static void run_group(struct kern_stream *inner, void *args)
{
    const struct timespec nap = { 0, NAP_NS };
    struct group *g = args;
    bool left = true;
    (void)inner;
    while (left && !atomic_load(&g->link->aborted)) {
        if (!boxes_pass(&g->link->boxes, g->posts, g->nposts, &left) && left) {
            nanosleep(&nap, NULL);
            if (g->link->broken(g->link->ctx))
                link_abort(g->link);
        }
    }
}

static void end(struct kern_link *l, struct kern_stream *s)
{
    const struct group group = { .link = l, .nposts = l->posts.n };
    void *posts;
    struct kern_stream *before = atomic_exchange(&ranks[l->boxes.rank].stream, s);
    if (before && before != s)
        guarded_die("a rank uses two streams", "its operations on them can be under way at once");
    struct group *g = late_copy(&group, sizeof group, l->posts.list, l->posts.n * sizeof *l->posts.list, &posts);
    g->posts = posts;
    late_put_waiting(s, run_group, g);
    atomic_store(&l->busy, false);
}

const struct kern_links guarded_links = { .name = "shared memory",
                                          .shares = true,
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
