/* SPDX-License-Identifier: Apache-2.0 */
/* Exchanges gradients on its own thread while the backward pass computes further ones. Exchanges run in the order in
 * which they are started, the same on every rank. If exchanges run on a stream (comm.launches), there is no thread;
 * events order them with the kernels of the backward pass. Knows only slices. */
#ifndef TRAIN_REDUCER_H
#define TRAIN_REDUCER_H

#include <kernels/stream.h>

#include "comm/comm.h"

struct reducer;

/* Sums that are not in memory all the time. Called around the exchange of a group, by the thread that does it. */
struct reducer_sums {
    int (*begin)(void *ctx, uint32_t group, bool first, struct fsdpck_error *err);
    int (*end)(void *ctx, uint32_t group, struct fsdpck_error *err);
    void *ctx;
};

struct reducer_job {
    const struct comm_slice *slices; /* (nslices) borrowed until the exchange has completed */
    size_t nslices;
    uint32_t ncontributions;
    bool first;
    bool clean;               /* zero these slices of the contribution afterwards */
    uint32_t group;           /* of the slices */
    struct reducer_sums sums; /* no functions: in memory. Not if comm launches */
};

struct reducer_times {
    uint64_t waited_ns; /* time that the caller, or the compute stream, waited in reducer_wait: exposed */
    uint64_t busy_ns;   /* time that the thread, or the stream, spent in exchanges, exposed or hidden */
};

/* The device and the stream that compute gradients. Borrowed. */
struct reducer_device {
    const struct kern_device *device;
    int index;
    struct kern_stream *compute;
};

/* comm (COMM_REDUCE) is borrowed. on: used only if comm launches. ngroups: reducer_job.group is less. */
int reducer_new(struct comm *comm, const struct reducer_device *on, uint32_t ngroups, struct reducer **out,
                struct fsdpck_error *err);
void reducer_free(struct reducer *r); /* NULL does nothing */
/* Starts an exchange and returns at once; at most REDUCER_JOBS may be in flight. The exchange waits for the work that
 * is already on the compute stream. */
enum { REDUCER_JOBS = 2 };
void reducer_start(struct reducer *r, const struct reducer_job *job);
/* Waits until at most `left` exchanges are in flight, and returns their errors. If comm launches, the compute stream
 * waits instead of the caller. */
int reducer_wait(struct reducer *r, uint32_t left, struct fsdpck_error *err);
struct reducer_times reducer_times(const struct reducer *r);
uint64_t reducer_waited_ns(const struct reducer *r, uint32_t group); /* the part of waited_ns for one group */
/* The exchange itself, without `clean`, on any thread. */
int reducer_exchange(struct comm *comm, const struct reducer_job *job, struct fsdpck_error *err);
/* Zeroes the slices in the contribution of this rank. */
void reducer_clean(struct comm *comm, const struct comm_slice *slices, size_t nslices);

#endif
