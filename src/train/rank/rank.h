/* SPDX-License-Identifier: Apache-2.0 */
/* One rank: its number among the others, its buffers, and the operations that make a step. */
#ifndef TRAIN_RANK_H
#define TRAIN_RANK_H

#include <fsdpck/base.h>

#include "comm/comm.h"
#include "rank/job.h"

struct rank_device; /* rank/device.h */
struct memory_map;  /* rank/memory.h */

/* Pointers to numbers are memory of the device: kernels and its memory table alone touch it. */
struct rank {
    const struct job *job;
    struct comm *host;    /* between the ranks' hosts; borrowed */
    struct comm *comm;    /* the same, or one over it where data lies on devices */
    struct rank_device *where;
    struct memory_map *memory;
    struct compute *compute;
    struct gather *gather;  /* NULL: it is the only one, and does not train */
    struct reducer *reducer; /* NULL where gradients are exchanged in line: one rank, or adapters, all at the end, or through the host */
    struct comm_slice *slices; /* (nslices) trainable parameters */
    size_t nslices;
    size_t *group_slices; /* (ngroups + 1) where each group's begin among them */
    float *own;       /* reduced gradients, first and second moments: (own_nelem) each */
    float *m, *v;
    float *masters;   /* fp32 values of what is trained, where the layout says that there are: (own_nelem); else NULL */
    struct kern_event *copied; /* the state, for the last checkpoint: it does not change before; NULL: nobody copies it */
    double *row_sums; /* (rows of this rank, of all that is trained) */
    struct kern_buffer row_sums_back; /* the same, in pinned memory */
    struct kern_adamw_range *ranges; /* (nparams) scratch: the ranges of one call of AdamW */
    struct kern_rows *rows;          /* (nparams) scratch: those of one call of sum_squares */
    uint64_t step;    /* done */
    uint64_t updates; /* applied: AdamW's t */
    uint64_t last_update; /* the step of the last one, 0: none; the steps after it were skipped, for their gradients were not finite */
    bool started;     /* a step has begun since this process did */
    struct {
        uint64_t done, total;
    } passes; /* through groups, of the first step since then; total 0: it is over */
    struct fsdpck_base base; /* the frozen weights under adapters, as they were read; no tensors without adapters */
    struct base_names *base_names; /* (base.ntensors) what base points into */
    enum fsdpck_dtype model_dtype; /* that most of the base's elements had where they were read */
    uint64_t load_nbytes, load_ns; /* of rank_load: read of this rank's rows, as they lie in files, and what it took until they were in their place */
};

struct base_names {
    char name[LAYOUT_NAME + 8];
    uint64_t shape[2];
};

/* In operations with other ranks since it was opened. */
struct rank_times {
    uint64_t exposed_ns; /* it stood still for them */
    uint64_t behind_ns;  /* its other threads were at it, also while it waited for them */
    uint64_t waited_ns;  /* for those: a part of exposed_ns */
};
struct rank_times rank_times(const struct rank *r);

/* host: COMM_MAIN; borrowed. */
int rank_open(const struct job *job, struct comm *host, struct rank **out, struct fsdpck_error *err);
/* To load and compute, not to train: no memory of its own but the communicator's. On the processor. */
int rank_open_bare(const struct job *job, struct comm *host, struct rank **out, struct fsdpck_error *err);
void rank_close(struct rank *r); /* NULL does nothing */
/* Leaves the error by which a rank ends to the others; where it is for lack of memory, with what would take less. */
void rank_fail(const struct job *job, struct job_status *job_status, struct fsdpck_error *err);

/* This rank's rows in the parameters' memory, and the fp32 values that are trained and saved, which may be the same memory. */
void *rank_rows(const struct rank *r, const struct param *p);
float *rank_master(const struct rank *r, const struct param *p);
/* Masters, rounded, to where they are gathered from; all: frozen rows have changed too. Nobody may be reading there. */
int rank_publish(struct rank *r, bool all, struct fsdpck_error *err);
/* The same of what is there already, as the optimizer's step leaves it. */
int rank_spread(struct rank *r, bool all, struct fsdpck_error *err);
/* Numbers between the device and the host; done when they return. */
int rank_download(const struct rank *r, void *host, const void *device, size_t nbytes, struct fsdpck_error *err);
int rank_upload(const struct rank *r, void *device, const void *host, size_t nbytes, struct fsdpck_error *err);

/* For who watches a start (train_options.phase): rank 0 tells, the others do not. */
void rank_tell(const struct rank *r, enum train_phase phase, uint64_t done, uint64_t total);

#endif
