/* One rank: its place among the others, the buffers it owns, and what a step is made of. */
#ifndef TRAIN_RANK_H
#define TRAIN_RANK_H

#include <fsdpck/base.h>
#include <fsdpck/lock.h>
#include <train/train.h>

#include "comm/comm.h"
#include "model/compute.h"
#include "data/data.h"

/* What all ranks know before they part. */
struct job {
    const struct train_config *config;
    const struct train_options *opt;
    struct fsdpck_options fs; /* for libfsdpck: notes of rank 0 only */
    struct model model;
    struct layout layout;
    struct data *data, *eval; /* eval: NULL without data.eval */
    struct samples *samples;  /* NULL without sample.prompts */
    struct fsdpck_folder_lock *lock; /* of output_dir, held by the process of rank 0 and its supervisor; else NULL */
    uint64_t nsteps;
    char date[12]; /* that the data shows, where it shows one */
    uint32_t first, nranks; /* this process's first rank; how many there are in all processes */
    unsigned nthreads; /* of a rank */
};

/* Tokens and documents of the largest micro-batch, of training or evaluation. */
void job_largest(const struct job *job, int64_t *ntok, size_t *ndocs);
int64_t job_largest_ntok(const struct job *job);

struct rank_device; /* run/device.h */
struct memory_map;  /* run/memory.h */
struct optimizer_lists; /* optimize.c */

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
    struct optimizer_lists *lists;
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
void rank_fail(const struct job *job, struct board *board, struct fsdpck_error *err);

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

/* load.c: base weights from config.model, adapters from init_adapter or PEFT's distribution; only this rank's rows. */
int rank_load(struct rank *r, struct fsdpck_error *err);
/* The same over whatever state the rank has. */
int rank_start_anew(struct rank *r, struct fsdpck_error *err);
/* sources.c: before the ranks part, all tensors are there, with the right shapes, and what else is there is accounted for. */
int job_check_sources(const struct job *job, struct fsdpck_error *err);

/* step.c: gradients of step r->step in r->own, reduced over all packets; the loss is that of the whole batch. */
int rank_gradients(struct rank *r, const struct step_plan *plan, double *loss, struct fsdpck_error *err);
/* The same for others who compute micro-batches: what lies in r->compute->batch; every rank's part, added in global order to *sum. */
void rank_fill(struct rank *r, const struct data *data, const struct step_plan *plan, const struct micro_batch *micro);
int rank_fold(struct rank *r, double mine, uint32_t nparts, double *sum, struct fsdpck_error *err);
/* evaluate.c: the mean loss over the supervised tokens of data.eval. Collective. *stopping: any rank was asked to stop
 * meanwhile: it was broken off, and there is no loss. */
int rank_evaluate(struct rank *r, struct train_metrics *m, bool *stopping, struct fsdpck_error *err);
/* Of a run that is under way, at the boundary of a step. */
struct asked {
    bool stop, save, sample;
};
/* optimize.c: the global norm, the same on every rank; NaN where a gradient is not finite. *asked: of this rank; then of any. */
int rank_norm(struct rank *r, double *norm, struct asked *asked, struct fsdpck_error *err);
int rank_optimizer_new(struct rank *r, struct fsdpck_error *err);
void rank_optimizer_free(struct rank *r);
int rank_update(struct rank *r, double norm, double lr, struct fsdpck_error *err);
/* Steps of the run whose learning rate rises to its value. */
uint64_t schedule_warmup(const struct train_config *config, uint64_t nsteps);
double schedule_lr(const struct train_config *config, uint64_t step, uint64_t nsteps);
/* Name of the first tensor whose gradient is not finite, or "loss". Collective. */
int rank_find_nonfinite(struct rank *r, const char **name, struct fsdpck_error *err);

/* checkpoint.c: this rank's part of the state, not published yet. After a failure it holds no meaning. */
int rank_resume(struct rank *r, const char *path, struct fsdpck_error *err);
/* Before the ranks part: whether the checkpoint fits this run, key by key. *step: steps done. */
int job_check_resume(const struct job *job, const char *path, uint64_t *step, struct fsdpck_error *err);

#endif
