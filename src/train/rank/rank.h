/* SPDX-License-Identifier: Apache-2.0 */
/* One rank: its number, its buffers, and the operations that make up a step. */
#ifndef TRAIN_RANK_H
#define TRAIN_RANK_H

#include <fsdpck/base.h>

#include <kernels/memory.h>

#include "comm/comm.h"
#include "rank/job.h"

struct rank_device;    /* rank/device.h */
struct memory_map;     /* rank/memory.h */
struct grad_file;      /* rank/grad_file.h */
struct owners;         /* rank/owners.h */
struct offload;        /* rank/offload.h */
struct offload_device; /* rank/offload_device.h */

/* Pointers to numbers are device memory: only kernels and the memory table of the device may access it. */
struct rank {
    const struct job *job;
    struct comm *host; /* the communicator between hosts; borrowed */
    struct comm *comm; /* the same, or one on top of it for data in device memory */
    struct rank_device *where;
    struct memory_map *memory;
    struct compute *compute;
    bool linked;             /* devices with separate memory are linked, or there is one rank */
    size_t *rest_at;         /* (nparams) on a device: where it has the chunks that it holds at rest */
    struct kern_buffer rest; /* pinned: the parameters that the rank holds at rest, linked, with offload_params */
    float *window;           /* device memory that rows pass through if they rest in host memory; else NULL */
    uint64_t window_nbytes;
    struct owners *owners;     /* NULL: no expert groups */
    struct gather *gather;     /* NULL: a single rank that does not train */
    struct reducer *reducer;   /* NULL if gradients are exchanged synchronously: one rank, adapters (all at the end), or
                                  exchange through the host */
    struct comm_slice *slices; /* (nslices) trainable parameters */
    size_t nslices;
    size_t *group_slices; /* (ngroups + 1) index of the first slice of each group */
    float *own; /* reduced gradients, first and second moments: (own_nelem) each; NULL if they are in a file */
    float *m, *v;
    float *masters;          /* fp32 masters of trained parameters, if the layout has them: (own_nelem); else NULL */
    struct offload *offload; /* NULL: moments and masters are in memory */
    struct offload_device *offload_device; /* its chunks on a device with memory of its own; else NULL */
    struct kern_buffer offload_pinned;     /* then its buffers in host memory */
    struct grad_file *grads;               /* NULL: reduced gradients are in memory */
    struct kern_stream *sums_stream;       /* of the reducer's thread, for sums of squares; NULL without `grads` */
    struct kern_event *copied; /* event: the state has been copied for the last checkpoint, and may change afterwards;
                                  NULL: no copies are made */
    double *row_sums;          /* (trained rows of this rank) */
    struct kern_buffer row_sums_back; /* the same, in pinned memory */
    struct kern_adamw_range *ranges;  /* (nparams) scratch: the ranges of one call of AdamW */
    struct kern_rows *rows;           /* (nparams) scratch: those of one call of sum_squares */
    uint64_t step;                    /* completed */
    uint64_t updates;                 /* applied; AdamW's t */
    uint64_t
        last_update; /* step of the last update, 0: none; later steps were skipped because gradients were not finite */
    bool started;    /* this process has started a step */
    struct tracker *tracker; /* of rank 0, for run/; NULL: none */
    uint64_t exchanged_ns;   /* time in exchanges of gradients without the reducer, in host memory */
    struct {
        uint64_t done, total;
    } passes;                      /* progress of the first step, in groups; total 0: the step is over */
    struct rank *tenants;          /* (job->ntenants) of a run with several adapters: this rank as each of them sees it,
                                      with its job, computation, slices and progress; all else is shared */
    struct fsdpck_base base;       /* the frozen base weights as read; no tensors without adapters */
    struct base_names *base_names; /* (base.ntensors) the names that base points into; NULL: another rank's */
    enum fsdpck_dtype model_dtype; /* the dtype of most elements of the base in its files */
    uint64_t load_nbytes,
        load_ns; /* rank_load: bytes of the rows of this rank in files, and the time until they were in place */
};

struct base_names {
    char name[LAYOUT_NAME + 8];
    uint64_t shape[3];
};

/* Time in operations with other ranks since rank_open. */
struct rank_times {
    uint64_t exposed_ns;             /* the rank was blocked */
    uint64_t background_ns;          /* its other threads communicated, including while the rank was blocked */
    uint64_t waited_ns;              /* the rank waited for these threads; part of exposed_ns */
    uint64_t gather_ns, exchange_ns; /* parts of exposed_ns: for parameters, and for sums of gradients */
};
struct rank_times rank_times(const struct rank *r);
/* The waits for the threads on account of the groups first … last: parts of gather_ns and exchange_ns. */
void rank_group_times(const struct rank *r, uint32_t first, uint32_t last, uint64_t *gather_ns, uint64_t *exchange_ns);

/* host: COMM_MAIN; borrowed. */
int rank_open(const struct job *job, struct comm *host, struct rank **out, struct fsdpck_error *err);
/* For loading and computing without training: on the CPU, where the rank uses only the communicator's memory, or on a
 * device, where it is alone and has the parameters in the device's. */
int rank_open_bare(const struct job *job, struct comm *host, struct rank **out, struct fsdpck_error *err);
void rank_close(struct rank *r); /* NULL does nothing */
/* Records the error that ends a rank, for the others. If memory ran out, adds a hint. */
void rank_fail(const struct job *job, struct job_status *job_status, struct fsdpck_error *err);

/* The rank's rows in parameter memory (host memory, if r->window is set), and the fp32 values that are trained and
 * saved; both may be the same memory.
 * rank_master() is NULL if they are in a file. */
void *rank_rows(const struct rank *r, const struct param *p);
float *rank_master(const struct rank *r, const struct param *p);
/* True if these fp32 values are in host memory, out of reach of kernels. */
bool rank_master_rests(const struct rank *r, const struct param *p);
/* The rank's rows of the reduced gradient. If they are in a file, while the parameter's group is in memory. */
float *rank_sums(const struct rank *r, const struct param *p);

/* fp32 elements of the state of a parameter that are in memory together: all of them, or a part of the file of
 * fsdp.offload. */
struct rank_part {
    int64_t row, nrow; /* row: from the rank's first one */
    float *data;       /* (nrow, p->ncol) in the rank's memory */
    bool in_file;
};
/* Advances to the next part of a parameter's rows; begins with a zeroed part, and ends with nrow 0. tree: as in a
 * checkpoint. What was put into a part in a file is kept when the next one is asked for, or by rank_publish(). Only
 * before the first update. */
int rank_next_part(const struct rank *r, const struct param *p, int tree, struct rank_part *part,
                   struct fsdpck_error *err);
/* True if the next part is in memory only after the present one has left it. */
bool rank_part_moves(const struct rank *r, const struct param *p, int tree, const struct rank_part *part);
/* Collective. Rounds the masters into the memory that gathers read, and publishes them. all: frozen rows have changed
 * too. No rank may read that memory at this time. */
int rank_publish(struct rank *r, bool all, struct fsdpck_error *err);
/* Collective. Publishes values that are already rounded, as the optimizer leaves them. */
int rank_publish_rounded(struct rank *r, bool all, struct fsdpck_error *err);
/* Tells the user, on rank 0. */
void rank_note(const struct rank *r, const char *line);
/* Synchronous copies between device and host. */
int rank_download(const struct rank *r, void *host, const void *device, size_t nbytes, struct fsdpck_error *err);
int rank_upload(const struct rank *r, void *device, const void *host, size_t nbytes, struct fsdpck_error *err);

/* Reports progress of the start (train_options.phase), on rank 0 only. */
void rank_report_progress(const struct rank *r, enum train_phase phase, uint64_t done, uint64_t total);

#endif
