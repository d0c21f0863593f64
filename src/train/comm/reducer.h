/* Exchanges gradients on a thread of its own, behind the backward that makes them: what is started first is exchanged first, on every rank alike. Knows of slices
 * only. */
#ifndef TRAIN_REDUCER_H
#define TRAIN_REDUCER_H

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
    uint64_t waited_ns; /* the caller stood still in reducer_wait: exposed */
    uint64_t busy_ns;   /* the thread was in an exchange, exposed or hidden */
};

/* comm (COMM_REDUCE) is borrowed. */
int reducer_new(struct comm *comm, struct reducer **out, struct fsdpck_error *err);
void reducer_free(struct reducer *r); /* NULL does nothing */
/* Returns at once; at most REDUCER_JOBS may be under way. */
enum { REDUCER_JOBS = 2 };
void reducer_start(struct reducer *r, const struct reducer_job *job);
/* Until no more than `left` of those that were started are under way; their errors. */
int reducer_wait(struct reducer *r, uint32_t left, struct fsdpck_error *err);
struct reducer_times reducer_times(const struct reducer *r);
/* Zeroes the slices in a rank's contribution. */
void reducer_clean(struct comm *comm, const struct comm_slice *slices, size_t nslices);

#endif
