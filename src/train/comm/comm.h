/* What ranks do together, as one small table: a row for processes of one host over shared memory; MPI and NCCL are further rows. Every operation is entered
 * by every rank in the same order. Knows nothing of models or steps: operations carry a name for messages. */
#ifndef TRAIN_COMM_H
#define TRAIN_COMM_H

#include <fsdpck/error.h>
#include <kernels/optimizer.h>

struct comm;

/* A part of every rank's contribution: owner s gets elements [s·chunk, min((s+1)·chunk, nelem)) of it. */
struct comm_slice {
    int64_t at;    /* elements: where it begins in each rank's contribution */
    int64_t nelem, chunk;
    float *into;   /* (up to chunk) of the calling rank */
};

struct comm_ops {
    const char *name;
    /* Returns when every rank has called it. */
    int (*barrier)(struct comm *, const char *operation, struct fsdpck_error *err);
    /* The reduce-scatter of a wave: ranks 0 … ncontributions-1 have one each. into = their left fold by rank, in fp32; `first` says whether the first is
     * assigned or added to what is there. */
    int (*exchange)(struct comm *, const struct comm_slice *slices, size_t nslices, uint32_t ncontributions, bool first, struct fsdpck_error *err);
    /* After this `all` holds every rank's slice of nbytes, rank 0's first; mine lies in its place already. May be a view of the others' memory that costs
     * nothing and that nobody may write to until the next barrier. */
    int (*gather)(struct comm *, void *all, size_t nbytes, struct fsdpck_error *err);
    /* values[i] = the sum over ranks. n is at most COMM_MAX_SUM. */
    int (*sum_u64)(struct comm *, uint64_t *values, size_t n, struct fsdpck_error *err);
    void (*free)(struct comm *);
};

enum { COMM_MAX_SUM = 256 };

struct comm {
    const struct comm_ops *ops;
    uint32_t rank, nranks;
    unsigned char *values; /* the parameters: every rank's shards, parameter after parameter (layout.value_at) */
    float *contribution; /* this rank's gradients (layout.grad_at) */
    uint64_t wait_ns;    /* time spent in operations */
    bool views;          /* gather copies nothing */
};

#endif
