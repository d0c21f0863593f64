/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives over device links: all-gathers of padded shards straight into their destination, and sends of gradients
 * to the owners of their rows, who add them in the order of ranks. A rank has one link, and enqueues all operations
 * from one thread on one stream. So two operations never overlap, and all ranks enqueue them in the same order;
 * otherwise devices would deadlock. Another thread watches the link: if a rank has failed, it aborts the operations in
 * flight, so that no device waits for a rank that has ended. */
#include "comm/comm_linked.h"

#include <kernels/ops.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm/comm_linked_impl.h"
#include "comm/stream_timer.h"

enum { LOOK_MS = 50, FOLD_COLS = 4096, ALIGNED = 4096 };

enum { NLANES = 3 };
static const enum comm_lane lanes_of_device[NLANES] = { COMM_MAIN, COMM_GATHER, COMM_REDUCE };

static int linked_barrier(struct comm *base, const char *operation, struct fsdpck_error *err)
{
    struct linked *c = (struct linked *)base;
    uint64_t before = c->host->wait_ns;
    int rc = c->host->ops->barrier(c->host, operation, err);
    base->wait_ns += c->host->wait_ns - before;
    return rc;
}

static int linked_sum(struct comm *base, uint64_t *values, size_t n, struct fsdpck_error *err)
{
    struct linked *c = (struct linked *)base;
    uint64_t before = c->host->wait_ns;
    int rc = c->host->ops->sum_u64(c->host, values, n, err);
    base->wait_ns += c->host->wait_ns - before;
    return rc;
}

int comm_linked_look(const struct linked *c, const char *operation, struct fsdpck_error *err)
{
    char message[KERN_MESSAGE_BYTES];
    comm_heartbeat((struct comm *)&c->base);
    if (job_status_failed(c->base.job_status))
        return comm_other_failed(&c->base, operation, err);
    if (c->on.device->stream_status(c->folds, message) == KERN_OK &&
        (!c->link || c->links->status(c->link, message) == KERN_OK))
        return 0;
    return fsdpck_error_set(err, FSDPCK_ERR_IO, NULL, "rank %u of %u, %s: %s", c->base.rank, c->base.nranks, operation,
                            message);
}

void comm_linked_follow(const struct linked *c, struct kern_event *event, struct kern_stream *before,
                        struct kern_stream *after)
{
    if (before == after)
        return;
    c->on.device->event_record(event, before);
    c->on.device->event_wait(event, after);
}

static enum kern_dtype dtype_of(const struct linked *c)
{
    return c->base.reduce == FSDPCK_FLOAT32 ? KERN_F32 : KERN_BF16;
}

/* Address of element `at` of this rank's contribution, in the dtype that is sent. */
static const char *sent_at(const struct linked *c, int64_t at)
{
    return c->base.reduce == FSDPCK_FLOAT32 ? (const char *)(c->on.contribution + at)
                                            : c->rounded + (size_t)at * comm_element_nbytes(&c->base);
}

/* Handles the elements as a matrix of wide rows, then the remainder as one row. */
static void each_part(struct linked *c, float *x, const void *y, int64_t nelem,
                      void (*put)(struct linked *c, float *x, const void *y, int64_t nrow, int64_t ncol))
{
    const int64_t whole = nelem / FOLD_COLS, done = whole * FOLD_COLS;
    if (whole > 0)
        put(c, x, y, whole, FOLD_COLS);
    if (nelem > done)
        put(c, x + done, (const char *)y + (size_t)done * comm_element_nbytes(&c->base), 1, nelem - done);
}

static void put_sum(struct linked *c, float *into, const void *from, int64_t nrow, int64_t ncol)
{
    const struct kern_mat to = { into, ncol, KERN_F32 };
    c->on.device->ops->add(c->folds, to, kern_const(to), (struct kern_cmat){ from, ncol, dtype_of(c) }, nrow, ncol);
}

static void put_wide(struct linked *c, float *into, const void *from, int64_t nrow, int64_t ncol)
{
    c->on.device->ops->cast(c->folds, (struct kern_mat){ into, ncol, KERN_F32 },
                            (struct kern_cmat){ from, ncol, dtype_of(c) }, nrow, ncol);
}

static void put_rounded(struct linked *c, float *from, const void *into, int64_t nrow, int64_t ncol)
{
    c->on.device->ops->cast(c->folds, (struct kern_mat){ (void *)into, ncol, dtype_of(c) },
                            (struct kern_cmat){ from, ncol, KERN_F32 }, nrow, ncol);
}

/* Rounds everything from the first slice to the last; the gaps are zero. */
static void round_own(struct linked *c, const struct comm_slice *slices, size_t nslices)
{
    int64_t first = nslices ? slices[0].at : 0, end = first;
    for (size_t i = 0; i < nslices; i++) {
        first = slices[i].at < first ? slices[i].at : first;
        end = slices[i].at + slices[i].nelem > end ? slices[i].at + slices[i].nelem : end;
    }
    if (c->base.reduce != FSDPCK_FLOAT32)
        each_part(c, c->on.contribution + first, sent_at(c, first), end - first, put_rounded);
}

/* into = from, or into += from, in the order of the calls. */
static void fold(struct linked *c, float *into, const void *from, int64_t nelem, bool assign)
{
    if (assign && c->base.reduce == FSDPCK_FLOAT32)
        c->on.device->memory->copy(c->folds, into, from, (size_t)nelem * sizeof *into);
    else
        each_part(c, into, from, nelem, assign ? put_wide : put_sum);
}

/* Folds adjacent slices together if this rank's rows of them are adjacent in both source and destination; the gaps are
 * zero. */
static void fold_own(struct linked *c, const struct comm_slice *slices, size_t nslices, bool assign)
{
    for (size_t i = 0, next; i < nslices; i = next) {
        int64_t begin, end = comm_slice_part(&slices[i], c->base.rank, &begin), from = slices[i].at + begin;
        for (next = i + 1; next < nslices; next++) {
            int64_t its, nelem = comm_slice_part(&slices[next], c->base.rank, &its);
            if (nelem > 0 && end > 0 && slices[next].at + its - from != slices[next].into - slices[i].into)
                break;
            if (nelem > 0 && end <= 0)
                break;
            end = nelem > 0 ? slices[next].into - slices[i].into + nelem : end;
        }
        if (end > 0)
            fold(c, slices[i].into, sent_at(c, from), end, assign);
    }
}

/* Where rank q's part of a slice is received. */
static char *received_at(const struct linked *c, int64_t own_at, uint32_t q)
{
    return c->received + (size_t)((int64_t)q * c->on.own_nelem + own_at) * comm_element_nbytes(&c->base);
}

static void exchange_slices(struct linked *c, const struct comm_slice *slices, size_t nslices, uint32_t ncontributions)
{
    const size_t width = comm_element_nbytes(&c->base);
    c->links->begin(c->link);
    for (size_t i = 0; i < nslices; i++) {
        int64_t begin, nelem;
        for (uint32_t owner = 0; owner < c->base.nranks && c->base.rank < ncontributions; owner++) {
            nelem = comm_slice_part(&slices[i], owner, &begin);
            if (nelem > 0 && owner != c->base.rank)
                c->links->send(c->link, c->stream, sent_at(c, slices[i].at + begin), (size_t)nelem * width, owner);
        }
        nelem = comm_slice_part(&slices[i], c->base.rank, &begin);
        for (uint32_t q = 0; q < ncontributions && nelem > 0; q++) {
            if (q != c->base.rank)
                c->links->receive(c->link, c->stream, received_at(c, slices[i].into - c->on.own, q),
                                  (size_t)nelem * width, q);
        }
    }
    c->links->end(c->link, c->stream);
}

/* Folds everything from the first slice's rows to the end of the last one's. The gaps between them may hold what
 * another exchange has received in another type; they are rows of no parameter, and nobody reads them in `into`. */
static void fold_received(struct linked *c, const struct comm_slice *slices, size_t nslices, uint32_t q, bool assign)
{
    int64_t begin, first = -1, end = 0;
    for (size_t i = 0; i < nslices; i++) {
        int64_t nelem = comm_slice_part(&slices[i], c->base.rank, &begin), at = slices[i].into - c->on.own;
        first = nelem > 0 && first < 0 ? at : first;
        end = nelem > 0 ? at + nelem : end;
    }
    if (first >= 0)
        fold(c, slices[0].into + (first - (slices[0].into - c->on.own)), received_at(c, first, q), end - first, assign);
}

static int linked_exchange(struct comm *base, const struct comm_slice *slices, size_t nslices, uint32_t ncontributions,
                           bool first, struct fsdpck_error *err)
{
    struct linked *c = (struct linked *)base;
    stream_timer_begin(base->timer, 0, c->folds);
    if (base->rank < ncontributions)
        round_own(c, slices, nslices);
    if (c->link) {
        comm_linked_follow(c, c->made, c->folds, c->stream);
        exchange_slices(c, slices, nslices, ncontributions);
        comm_linked_follow(c, c->moved, c->stream, c->folds);
    }
    for (uint32_t q = 0; q < ncontributions; q++) {
        if (q == base->rank)
            fold_own(c, slices, nslices, first && q == 0);
        else
            fold_received(c, slices, nslices, q, first && q == 0);
    }
    stream_timer_end(base->timer, c->folds);
    return comm_linked_look(c, COMM_EXCHANGE_OPERATION, err);
}

static bool is_over(void *ctx)
{
    const struct linked *c = ctx;
    comm_heartbeat((struct comm *)&c->base);
    return job_status_failed(c->base.job_status);
}

/* Reports the first failure of the link to all ranks. Then, or if another rank has failed, aborts the operations in
 * flight. */
static void *watch(void *arg)
{
    struct linked *c = arg;
    const struct timespec nap = { 0, LOOK_MS * 1000000 };
    while (!atomic_load(&c->ending) && !job_status_failed(c->base.job_status)) {
        char message[KERN_MESSAGE_BYTES];
        struct fsdpck_error err = { 0 };
        nanosleep(&nap, NULL);
        if (c->links->status(c->link, message) == KERN_OK)
            continue;
        fsdpck_error_set(&err, FSDPCK_ERR_IO, NULL, "rank %u of %u, link between devices: %s", c->base.rank,
                         c->base.nranks, message);
        job_status_fail(c->base.job_status, &err);
    }
    if (!atomic_load(&c->ending))
        c->links->abort(c->link);
    return NULL;
}

static void free_lane(struct comm *lane)
{
    if (lane)
        stream_timer_free(lane->timer);
    free(lane);
}

/* Frees all lanes; COMM_MAIN owns what they share. */
static void linked_free(struct comm *base)
{
    struct linked *c = (struct linked *)base;
    const struct kern_device *device = c->on.device;
    atomic_store(&c->ending, true);
    if (c->watching)
        pthread_join(c->thread, NULL);
    if (c->link)
        c->links->close(c->link);
    device->stream_free(c->stream);
    device->event_free(c->made);
    device->event_free(c->moved);
    for (int i = NLANES - 1; i >= 0; i--)
        free_lane(base->lanes[lanes_of_device[i]]);
}

static const struct comm_ops linked_ops = { .name = "linked",
                                            .barrier = linked_barrier,
                                            .exchange = linked_exchange,
                                            .gather = comm_linked_gather,
                                            .keep = comm_linked_keep,
                                            .publish = comm_linked_publish,
                                            .sum_u64 = linked_sum,
                                            .free = linked_free };

static int link_failed(const struct linked *c, const char *message, struct fsdpck_error *err)
{
    if (job_status_failed(c->base.job_status))
        return comm_other_failed(&c->base, "linking of devices", err);
    return fsdpck_error_set(err, FSDPCK_ERR_IO, NULL,
                            "rank %u of %u: its device cannot be linked to the others by %s: %s", c->base.rank,
                            c->base.nranks, c->links->name, message);
}

/* Distributes rank 0's link id as a sum of words. */
static int open_link(struct linked *c, struct fsdpck_error *err)
{
    union {
        unsigned char bytes[KERN_LINK_ID_BYTES];
        uint64_t words[KERN_LINK_ID_BYTES / 8];
    } id = { { 0 } };
    char message[KERN_MESSAGE_BYTES] = "";
    if (c->base.rank == 0 && c->links->make_id(id.bytes, message) != KERN_OK)
        return link_failed(c, message, err);
    int rc = c->host->ops->sum_u64(c->host, id.words, KERN_LINK_ID_BYTES / 8, err);
    if (rc)
        return rc;
    int opened = c->links->open(id.bytes, c->base.rank, c->base.nranks, c->on.index, is_over, c, &c->link, message);
    return opened == KERN_OK ? 0 : link_failed(c, message, err);
}

/* Creates the resources that all lanes share. */
static int start_main(struct linked *c, struct fsdpck_error *err)
{
    const struct kern_device *device = c->on.device;
    char message[KERN_MESSAGE_BYTES];
    if (device->stream_new(c->on.index, NULL, &c->stream, message) != KERN_OK ||
        device->event_new(c->on.index, false, &c->made, message) != KERN_OK ||
        device->event_new(c->on.index, false, &c->moved, message) != KERN_OK)
        return fsdpck_error_set(err, FSDPCK_ERR_NOMEM, NULL, "rank %u's stream of what goes between ranks: %s",
                                c->base.rank, message);
    int rc = stream_timer_new(device, c->on.index, 1, STREAM_TIMER_INTERVALS, &c->base.timer, err);
    return !rc && c->links ? open_link(c, err) : rc;
}

/* Adds COMM_GATHER or COMM_REDUCE, which share COMM_MAIN's link and enqueue everything on its stream. */
static int add_lane(struct linked *main, enum comm_lane lane, struct fsdpck_error *err)
{
    struct linked *c = calloc(1, sizeof *c);
    if (!c)
        return fsdpck_error_nomem(err, sizeof *c);
    *c = (struct linked){ .base = main->base,
                          .host = main->host->lanes[lane],
                          .on = main->on,
                          .links = main->links,
                          .link = main->link,
                          .stream = main->stream,
                          .folds = main->stream,
                          .received = main->received,
                          .rounded = main->rounded };
    memset(c->base.lanes, 0, sizeof c->base.lanes);
    c->base.lane = lane;
    c->base.stream = c->stream;
    c->base.launches = true;
    main->base.lanes[lane] = &c->base;
    return stream_timer_new(c->on.device, c->on.index, 1, STREAM_TIMER_INTERVALS, &c->base.timer, err);
}

static uint64_t received_nbytes(uint32_t nranks, int64_t own_nelem, size_t element_nbytes)
{
    const uint64_t nbytes = nranks > 1 ? nranks * (uint64_t)own_nelem * element_nbytes : 0;
    return (nbytes + ALIGNED - 1) / ALIGNED * ALIGNED;
}

uint64_t comm_linked_nbytes(uint32_t nranks, int64_t own_nelem, int64_t grad_nelem, size_t element_nbytes, bool rounds)
{
    return received_nbytes(nranks, own_nelem, element_nbytes) + (rounds ? (uint64_t)grad_nelem * sizeof(uint16_t) : 0);
}

static struct linked *new_main(struct comm *host, const struct comm_on_device *on, const struct kern_links *links,
                               char *memory)
{
    struct linked *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->host = host;
    c->on = *on;
    c->links = links;
    c->folds = on->compute;
    c->received = memory;
    c->rounded = on->rounds ? memory + received_nbytes(host->nranks, on->own_nelem, on->element_nbytes) : NULL;
    c->base = (struct comm){ .ops = &linked_ops,
                             .job_status = host->job_status,
                             .lane = COMM_MAIN,
                             .rank = host->rank,
                             .nranks = host->nranks,
                             .kept_within = on->kept_within,
                             .values = on->values,
                             .contribution = on->contribution,
                             .reduce = host->reduce,
                             .views = on->views };
    c->base.lanes[COMM_MAIN] = &c->base;
    c->base.lanes[COMM_SAVE] = host->lanes[COMM_SAVE];
    return c;
}

int comm_linked_new(struct comm *host, const struct comm_on_device *on, const struct kern_links *links, void *memory,
                    struct comm **out, struct fsdpck_error *err)
{
    struct linked *main = new_main(host, on, links, memory);
    *out = NULL;
    if (!main)
        return fsdpck_error_nomem(err, sizeof *main);
    int rc = start_main(main, err);
    for (int i = 1; i < NLANES && !rc; i++)
        rc = add_lane(main, lanes_of_device[i], err);
    if (rc) {
        linked_free(&main->base);
        return rc;
    }
    main->watching = links && pthread_create(&main->thread, NULL, watch, main) == 0;
    *out = &main->base;
    return 0;
}
