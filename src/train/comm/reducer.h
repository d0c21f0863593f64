/* SPDX-License-Identifier: Apache-2.0 */
/* Exchanges gradients behind the backward that makes them, on a thread of its own: what is started first is exchanged first, on every rank alike. Where an exchange
 * is only put on its way (comm.launches) there is no thread, and events keep it and the backward's kernels apart. Knows of slices only. */
#ifndef TRAIN_REDUCER_H
#define TRAIN_REDUCER_H

#include <kernels/stream.h>

#include "comm/comm.h"

struct reducer;

struct reducer_job {
    const struct comm_slice *slices; /* (nslices) borrowed until it is over */
    size_t nslices;
    uint32_t ncontributions;
    bool first;
    bool clean; /* the slices' places in the contribution are zeroed behind it */
};

struct reducer_times {
    uint64_t waited_ns; /* the caller, or the compute stream, stood still in reducer_wait: exposed */
    uint64_t busy_ns;   /* the thread, or a stream, was in an exchange, exposed or hidden */
};

/* Where gradients are made. Borrowed. */
struct reducer_place {
    const struct kern_device *device;
    int index;
    struct kern_stream *compute;
};

/* comm (COMM_REDUCE) is borrowed. place: only looked at where comm launches. */
int reducer_new(struct comm *comm, const struct reducer_place *place, struct reducer **out, struct fsdpck_error *err);
void reducer_free(struct reducer *r); /* NULL does nothing */
/* Returns at once; at most REDUCER_JOBS may be under way. What the compute stream has been given so far is done before the exchange. */
enum { REDUCER_JOBS = 2 };
void reducer_start(struct reducer *r, const struct reducer_job *job);
/* Until no more than `left` of those that were started are under way; their errors. Where comm launches, the compute stream waits, not the caller. */
int reducer_wait(struct reducer *r, uint32_t left, struct fsdpck_error *err);
struct reducer_times reducer_times(const struct reducer *r);
/* Zeroes the slices in a rank's contribution. */
void reducer_clean(struct comm *comm, const struct comm_slice *slices, size_t nslices);

#endif
