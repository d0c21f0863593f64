/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives through host memory. The rank copies its changed shard to the host communicator, and gathered groups back
 * to the device. It copies gradients to the host, which folds them, and copies the sums back. */
#include "comm/comm_staged.h"

#include <stdlib.h>

#include "arrays/grow.h"

struct staged {
    struct comm base;
    struct comm *host; /* the same lane of the host communicator */
    struct comm_on_device on;
    struct kern_stream *copies; /* COMM_GATHER: its own stream. COMM_MAIN: the compute stream, so that copies are
                                   ordered with the kernels that make and use gradients */
    struct kern_buffer sums;    /* COMM_MAIN: (own_nelem) the sums so far */
    struct kern_buffer group;   /* COMM_GATHER: one group, if ranks on the host see only their own rows */
    struct comm_slice *slices;  /* (nslices) the caller's slices, redirected into `sums` */
    size_t nslices;
};

static int sync(struct staged *c, const char *operation, struct fsdpck_error *err)
{
    char message[KERN_MESSAGE_BYTES];
    if (c->on.device->stream_sync(c->copies, message) == KERN_OK)
        return 0;
    return fsdpck_error_set(err, FSDPCK_ERR_IO, NULL, "rank %u of %u, %s: device '%s': %s", c->base.rank,
                            c->base.nranks, operation, c->on.device->name, message);
}

static int staged_barrier(struct comm *base, const char *operation, struct fsdpck_error *err)
{
    struct staged *c = (struct staged *)base;
    uint64_t before = c->host->wait_ns;
    int rc = c->host->ops->barrier(c->host, operation, err);
    base->wait_ns += c->host->wait_ns - before;
    return rc;
}

static int staged_sum(struct comm *base, uint64_t *values, size_t n, struct fsdpck_error *err)
{
    struct staged *c = (struct staged *)base;
    uint64_t before = c->host->wait_ns;
    int rc = c->host->ops->sum_u64(c->host, values, n, err);
    base->wait_ns += c->host->wait_ns - before;
    return rc;
}

static int staged_publish(struct comm *base, const struct comm_piece *pieces, size_t npieces, struct fsdpck_error *err)
{
    struct staged *c = (struct staged *)base;
    for (size_t i = 0; i < npieces && !c->on.on_host; i++) {
        size_t begin, nbytes = comm_piece_chunk(&pieces[i], base->rank, &begin);
        const size_t own = base->views ? pieces[i].at + begin : pieces[i].own;
        c->on.device->memory->copy(c->copies, c->host->values + pieces[i].at + begin, c->on.values + own, nbytes);
    }
    int rc = sync(c, "publishing of parameters", err);
    return rc ? rc : c->host->ops->publish(c->host, pieces, npieces, err);
}

/* A device that holds all parameters takes over those of the other owners; the others gather them when they are used.
 */
static int staged_settle(struct comm *base, const struct comm_piece *pieces, size_t npieces, struct fsdpck_error *err)
{
    struct staged *c = (struct staged *)base;
    for (size_t i = 0; i < npieces && base->views; i++) {
        size_t begin, nbytes = comm_piece_chunk(&pieces[i], base->rank, &begin);
        const size_t end = begin + nbytes, at = pieces[i].at;
        c->on.device->memory->copy(c->copies, c->on.values + at, c->host->values + at, begin);
        c->on.device->memory->copy(c->copies, c->on.values + at + end, c->host->values + at + end,
                                   pieces[i].nbytes - end);
    }
    return sync(c, COMM_UPDATE_OPERATION, err);
}

static int staged_gather(struct comm *base, enum comm_placement from, const struct comm_piece *pieces, size_t npieces,
                         char *into, struct fsdpck_error *err)
{
    struct staged *c = (struct staged *)base;
    uint64_t started = comm_now_ns();
    const bool views = c->host->views;
    char *group = c->group.data;
    int rc = views ? 0 : c->host->ops->gather(c->host, from, pieces, npieces, group, err);
    for (size_t i = 0; i < npieces && !rc; i++) {
        const void *from = views ? (const void *)(c->host->values + pieces[i].at) : group + pieces[i].into;
        c->on.device->memory->copy(c->copies, into + pieces[i].into, from, pieces[i].nbytes);
    }
    if (!rc)
        rc = sync(c, COMM_GATHER_OPERATION, err);
    comm_heartbeat(base);
    base->wait_ns += comm_now_ns() - started;
    return !rc && job_status_failed(base->job_status) ? comm_other_failed(base, COMM_GATHER_OPERATION, err) : rc;
}

/* The group is still in the buffer that it passed through. */
static void staged_keep(struct comm *base, const struct comm_piece *pieces, size_t npieces, const char *gathered)
{
    struct staged *c = (struct staged *)base;
    (void)gathered;
    c->host->ops->keep(c->host, pieces, npieces, c->group.data);
}

/* Redirects the caller's slices into `sums`. */
static int redirect_slices(struct staged *c, const struct comm_slice *slices, size_t nslices, struct fsdpck_error *err)
{
    float *sums = c->sums.data;
    if (!grow((void **)&c->slices, &c->nslices, nslices, sizeof *c->slices))
        return fsdpck_error_nomem(err, nslices * sizeof *c->slices);
    for (size_t i = 0; i < nslices; i++) {
        c->slices[i] = slices[i];
        c->slices[i].into = sums + (slices[i].into - c->on.own);
    }
    return 0;
}

/* Copies this rank's contribution to the host. Also waits for earlier copies of sums to the device: the exchange will
 * change the sums. */
static int copy_to_host(struct staged *c, const struct comm_slice *slices, size_t nslices, struct fsdpck_error *err)
{
    for (size_t i = 0; i < nslices; i++)
        c->on.device->memory->copy(c->copies, c->host->contribution + slices[i].at, c->on.contribution + slices[i].at,
                                   (size_t)slices[i].nelem * sizeof(float));
    return sync(c, COMM_EXCHANGE_OPERATION, err);
}

/* The sums so far, before an exchange adds to them. copy_to_host() waits for them too. */
static void take_sums(struct staged *c, const struct comm_slice *slices, size_t nslices)
{
    for (size_t i = 0; i < nslices; i++) {
        int64_t begin, nelem = comm_slice_part(&slices[i], c->base.rank, &begin);
        if (nelem > 0)
            c->on.device->memory->copy(c->copies, c->slices[i].into, slices[i].into, (size_t)nelem * sizeof(float));
    }
}

static void copy_to_device(struct staged *c, const struct comm_slice *slices, size_t nslices)
{
    for (size_t i = 0; i < nslices; i++) {
        int64_t begin, nelem = comm_slice_part(&slices[i], c->base.rank, &begin);
        if (nelem > 0)
            c->on.device->memory->copy(c->copies, slices[i].into, c->slices[i].into, (size_t)nelem * sizeof(float));
    }
}

static int staged_exchange(struct comm *base, const struct comm_slice *slices, size_t nslices, uint32_t ncontributions,
                           bool first, struct fsdpck_error *err)
{
    struct staged *c = (struct staged *)base;
    uint64_t started = comm_now_ns();
    int rc = redirect_slices(c, slices, nslices, err);
    if (!rc && !first && c->on.own_changes)
        take_sums(c, slices, nslices);
    if (!rc)
        rc = copy_to_host(c, slices, base->rank < ncontributions ? nslices : 0, err);
    c->host->reduce = base->reduce;
    if (!rc)
        rc = c->host->ops->exchange(c->host, c->slices, nslices, ncontributions, first, err);
    if (!rc)
        copy_to_device(c, slices, nslices);
    base->wait_ns += comm_now_ns() - started;
    return rc;
}

static void free_lane(struct staged *c)
{
    if (!c)
        return;
    if (c->base.lane == COMM_GATHER)
        c->on.device->stream_free(c->copies);
    c->on.device->memory->free(&c->sums);
    c->on.device->memory->free(&c->group);
    free(c->slices);
    free(c);
}

static void staged_free(struct comm *base)
{
    free_lane((struct staged *)base->lanes[COMM_GATHER]);
    free_lane((struct staged *)base);
}

static const struct comm_ops staged_ops = { .name = "staged",
                                            .barrier = staged_barrier,
                                            .exchange = staged_exchange,
                                            .gather = staged_gather,
                                            .keep = staged_keep,
                                            .publish = staged_publish,
                                            .settle = staged_settle,
                                            .sum_u64 = staged_sum,
                                            .free = staged_free };

static int start_lane(struct staged *c, char *message)
{
    const struct kern_location pinned = { .kind = KERN_MEMORY_PINNED, .index = c->on.index };
    const size_t sums_nbytes = (size_t)c->on.own_nelem * sizeof(float);
    if (c->base.lane == COMM_MAIN) {
        c->copies = c->on.compute;
        return c->on.device->memory->alloc(pinned, sums_nbytes, &c->sums, message);
    }
    int rc = c->on.device->stream_new(c->on.index, NULL, &c->copies, message);
    return rc || c->host->views ? rc
                                : c->on.device->memory->alloc(pinned, c->on.largest_group_nbytes, &c->group, message);
}

static int new_lane(struct comm *host, const struct comm_on_device *on, struct staged **out, struct fsdpck_error *err)
{
    char message[KERN_MESSAGE_BYTES];
    struct staged *c = calloc(1, sizeof *c);
    *out = c;
    if (!c)
        return fsdpck_error_nomem(err, sizeof *c);
    c->host = host;
    c->on = *on;
    c->base = (struct comm){ .ops = &staged_ops,
                             .job_status = host->job_status,
                             .lane = host->lane,
                             .rank = host->rank,
                             .nranks = host->nranks,
                             .kept_within = host->kept_within,
                             .values = on->on_host ? host->values : on->values,
                             .contribution = on->contribution,
                             .views = on->views };
    if (start_lane(c, message) != KERN_OK)
        return fsdpck_error_set(err, FSDPCK_ERR_NOMEM, NULL, "rank %u's memory for what passes through the host: %s",
                                host->rank, message);
    return 0;
}

int comm_staged_new(struct comm *host, const struct comm_on_device *on, struct comm **out, struct fsdpck_error *err)
{
    struct staged *main = NULL, *gather = NULL;
    *out = NULL;
    int rc = new_lane(host, on, &main, err);
    if (!rc)
        rc = new_lane(host->lanes[COMM_GATHER], on, &gather, err);
    if (rc) {
        free_lane(main);
        free_lane(gather);
        return rc;
    }
    gather->base.stream = gather->copies;
    main->base.lanes[COMM_MAIN] = &main->base;
    main->base.lanes[COMM_GATHER] = &gather->base;
    main->base.lanes[COMM_REDUCE] = host->lanes[COMM_REDUCE];
    main->base.lanes[COMM_SAVE] = host->lanes[COMM_SAVE];
    *out = &main->base;
    return 0;
}
