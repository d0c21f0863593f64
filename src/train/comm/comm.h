/* SPDX-License-Identifier: Apache-2.0 */
/* Collective operations between ranks, as a small table of functions. Implementations: shared memory for the processes
 * of one host, MPI, and, on top of either, one for data in device memory. All ranks must enter the operations of a
 * lane in the same order. Knows nothing of models or steps; each operation has a name for messages. */
#ifndef TRAIN_COMM_H
#define TRAIN_COMM_H

#include <fsdpck/dtype.h>
#include <fsdpck/error.h>

#include "comm/job_status.h"

struct comm;
struct kern_stream;

/* Threads of a rank that talk to the same threads of the others; lanes never wait for each other. */
enum comm_lane { COMM_MAIN, COMM_GATHER, COMM_REDUCE, COMM_SAVE, COMM_NLANES };

/* A part of every rank's contribution: owner s gets elements [s·chunk, min((s+1)·chunk, nelem)) of it. */
struct comm_slice {
    int64_t at;    /* elements: where it begins in each rank's contribution */
    int64_t nelem, chunk;
    float *into;   /* (up to chunk) of the calling rank */
};

/* A parameter that is put together: rank r has bytes [r·chunk, min((r+1)·chunk, nbytes)) of it. */
struct comm_piece {
    size_t at;   /* bytes: where it begins in `values` */
    size_t into; /* bytes: where it goes */
    size_t nbytes, chunk;
    size_t own;  /* bytes: where the calling rank's part begins in the memory of its device, if it is in one */
};

struct comm_ops {
    const char *name;
    /* Returns when every rank has called it. */
    int (*barrier)(struct comm *, const char *operation, struct fsdpck_error *err);
    /* The reduce-scatter of a wave: ranks 0 … ncontributions-1 have one each, which is rounded to comm.reduce where it lies, also before it goes to the same rank:
     * what it was is gone. into = their left fold by rank, in fp32; `first` says whether the first is assigned or added to what is there. */
    int (*exchange)(struct comm *, const struct comm_slice *slices, size_t nslices, uint32_t ncontributions, bool first, struct fsdpck_error *err);
    /* Every piece, whole, into a buffer of the caller's. Nobody may change his rows of them meanwhile. */
    int (*gather)(struct comm *, const struct comm_piece *pieces, size_t npieces, char *into, struct fsdpck_error *err);
    /* The calling rank's parts of these have changed. Every rank calls it before the barrier after which they are gathered; NULL: gathered from where they lie. */
    int (*publish)(struct comm *, const struct comm_piece *pieces, size_t npieces, struct fsdpck_error *err);
    /* values[i] = the sum over ranks. n is at most COMM_MAX_SUM. */
    int (*sum_u64)(struct comm *, uint64_t *values, size_t n, struct fsdpck_error *err);
    void (*free)(struct comm *);
};

enum { COMM_MAX_SUM = 256 };

struct comm {
    const struct comm_ops *ops;
    struct job_status *job_status; /* borrowed */
    enum comm_lane lane;
    uint32_t rank, nranks;
    /* Data moves on it, and an operation may return before it has moved; NULL: it has moved when the operation returns. */
    struct kern_stream *stream;
    /* Its operations only put work on the stream. They are called in one thread of a rank, so that the order of its program, the same on every rank, is theirs. */
    bool launches;
    unsigned char *values; /* the parameters (layout.value_at): this rank's rows at least; everybody's where `views` */
    float *contribution; /* this rank's gradients (layout.grad_at) */
    uint64_t wait_ns;    /* time that the host spent in operations of this lane */
    struct stream_timer *timer;   /* of linked devices: how long operations take on the stream that they are put on; else NULL */
    enum fsdpck_dtype reduce; /* what gradients are exchanged as: FSDPCK_FLOAT32 or FSDPCK_BFLOAT16 */
    bool views;          /* all rows of all ranks lie in `values`: nothing has to be gathered */
    struct comm *lanes[COMM_NLANES]; /* of COMM_MAIN only: itself and the others, which are freed with it */
};

/* Of COMM_MAIN. operation: static text. */
static inline void comm_at(struct comm *c, uint64_t step, const char *operation)
{
    job_status_at(c->job_status, c->rank, step, operation);
}

static inline void comm_heartbeat(struct comm *c)
{
    job_status_heartbeat(c->job_status, c->rank);
}

uint64_t comm_now_ns(void);
/* How long operations of this lane took, on the host or on a stream. What runs there is waited for. */
uint64_t comm_wait_ns(const struct comm *c);
/* Another rank failed, and has said why. */
int comm_other_failed(const struct comm *c, const char *operation, struct fsdpck_error *err);
/* Collective: *first of each rank (code 0: it has none) becomes that of the first rank whose failure is its own, on every rank. Fails, and leaves *first, only
 * where the ranks cannot tell each other. */
int comm_first_error(struct comm *c, struct fsdpck_error *first, struct fsdpck_error *err);
/* Rank `late` is waited for no longer. */
int comm_timed_out(const struct comm *c, uint32_t late, const char *operation, struct fsdpck_error *err);
/* This rank's slices, rounded to comm.reduce and moved together at the beginning of where they lie. */
void comm_round(const struct comm *c, const struct comm_slice *slices, size_t nslices);
/* Element `begin` of a slice in a rank's contribution, rounded: bytes. */
size_t comm_slice_at(const struct comm *c, const struct comm_slice *s, int64_t begin);
size_t comm_element_nbytes(const struct comm *c);
/* into = from, or into += from; from: (nelem) of comm.reduce. */
void comm_fold(const struct comm *c, float *into, const void *from, int64_t nelem, bool assign);
/* The elements of a slice that rank r owns: [*begin, *begin + result); none where the result is not positive. */
int64_t comm_slice_part(const struct comm_slice *s, uint32_t r, int64_t *begin);

#endif
