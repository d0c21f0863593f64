/* SPDX-License-Identifier: Apache-2.0 */
/* The trainer: `fsdptrain run` and what tests call. Everything a run needs is in its config and options; the caller's process prints nothing and is
 * not ended. Of the environment only FSDPTRAIN_REPLAY and FSDPTRAIN_CUDA_WARPGROUPS are read, which compare ways of computing. */
#ifndef TRAIN_TRAIN_H
#define TRAIN_TRAIN_H

#include <fsdpck/source.h>
#include <train/config.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One line of metrics.jsonl. */
struct train_metrics {
    uint64_t step; /* steps done, this one included */
    double loss, grad_norm, lr;
    uint64_t ntok, nsupervised;
    double tokens_per_second, step_seconds, data_wait_seconds, comm_seconds;
    double comm_hidden_seconds; /* gathers and exchanges behind the computation: not in comm_seconds */
    double save_stall_seconds; /* before the next step, for a copy of what is saved */
    bool evaluated; /* on data.eval, after this step */
    double eval_loss, eval_seconds; /* mean over the supervised tokens of data.eval */
    uint64_t eval_nsupervised;
    uint64_t gathered_nbytes; /* copied into buffers; 0 where parameters are mapped */
    uint64_t rss_nbytes;      /* of rank 0 */
    uint64_t pss_nbytes;      /* of all ranks, what they share counted once; looked at in the first step and every hundredth */
};

struct train_start;

/* Where a start is, before the first step has ended. */
enum train_phase {
    TRAIN_TOKENIZING, /* bytes of text */
    TRAIN_LOADING,    /* bytes of weights: rank 0's rows, as they lie in files */
    TRAIN_FIRST_STEP  /* groups of parameters passed through, forward and backward */
};

/* Zero-initialise: every zero means the default. */
struct train_options {
    uint32_t nranks;         /* local processes; default 1 */
    unsigned nthreads;       /* of each rank; default: the processors this process may use, shared among the ranks */
    const char *resume;      /* "auto" (default), "never", or a checkpoint directory */
    double patience_seconds; /* how long ranks wait for each other before they name the one that stalls; default 600 */
    /* In rank 0's process: when everything is loaded, before the first step; may be NULL. */
    void (*on_start)(void *ctx, const struct train_start *start);
    /* There too, after each step that log.every asks for, each evaluation and the last step; may be NULL. */
    void (*on_step)(void *ctx, const struct train_metrics *metrics);
    void (*note)(void *ctx, const char *line); /* as in fsdpck_options */
    /* How far a phase is, as often as something is done; from rank 0's process, or before the ranks part. May be NULL. */
    void (*phase)(void *ctx, enum train_phase phase, uint64_t done, uint64_t total);
    /* In the process of a rank whose supervisor was killed, just before it ends: nobody else is left to say so. May be NULL. */
    void (*lost)(void *ctx, const struct fsdpck_error *err);
    void *ctx;
    const volatile int *stop; /* nonzero: finish the step, save, return. May be NULL */
    const volatile int *saves; /* counts up with each save that is asked for between the planned ones; rank 0's process only. May be NULL */
    /* A launcher (mpirun) has started this process as one rank of so many; 0: none has. The others join by MPI. */
    uint32_t launched_rank, launched_nranks;
    bool several_hosts; /* not all of them are on this one: parameters are gathered by copying */
    uint32_t launched_local, launched_nlocal; /* its number among the ranks on its host, and how many they are */
    const char *device; /* "cpu" (default) or "cuda" */
    const char *module; /* path of the module that has the device; NULL: there is none */
    bool profile;      /* rank 0's kernels are timed: notes at the end, and output_dir/profile.json */
    bool copy_gathers; /* ranks of one host gather parameters by copying, as ranks of several do, instead of mapping them */
};

struct train_result {
    uint64_t nsteps;  /* of the whole run */
    uint64_t ndone;   /* steps done */
    uint64_t nskipped; /* of those that this call did: gradients were not finite, and the weights stayed as they were (train.on_nonfinite) */
    uint64_t ntrailing; /* of these, the last ones, without one between them that was not */
    bool diverged;    /* all steps are done, and ntrailing is ten or half of them: what is left is no result, and is not exported */
    bool stopped;     /* asked to stop before the end; the checkpoint is saved */
    bool said_elsewhere; /* the run failed, and another rank of the launcher says why */
    bool save_failed; /* the last save did not succeed */
    char checkpoint[4096]; /* the last one, or "" */
    char adapter[4096];    /* of a LoRA run that is finished, or "" */
    char model[4096];      /* of a finished run that trained all weights: a Hugging Face folder; or "" */
};

/* Starts the ranks, trains, saves, ends the ranks. Blocks. */
FSDPCK_API int train_run(const struct train_config *config, const struct train_options *opt, struct train_result *result, struct fsdpck_error *err);

/* A launcher's rank that cannot even call train_run: tells the others. False: another rank says what it would say. */
FSDPCK_API bool train_speaks(const struct train_options *opt, const struct fsdpck_error *err);

/* What a run will take, before anything is loaded. Bytes are of one rank (its full share; trailing ranks may have less). */
struct train_plan {
    uint64_t nsteps;
    uint64_t ndocs, ntok, nsupervised, longest_ntok, nrows; /* of an epoch of the data, cut and packed */
    uint64_t ntrained, nfrozen;    /* elements, whole model */
    uint64_t shard_nbytes;         /* its rows of all parameters, as they are computed with: mapped by the other ranks, not copied */
    uint64_t gradient_nbytes;      /* gradients of a packet, whole, and its rows of the reduced ones */
    uint64_t optimizer_nbytes;     /* moments of its rows, and their fp32 masters where parameters are bf16 */
    uint64_t buffer_nbytes;        /* what groups are gathered into; 0 where ranks map each other's rows */
    uint64_t snapshot_nbytes;      /* a copy of what is saved */
    uint64_t nrecomputed;          /* blocks that keep their input only, and are computed anew in the backward */
    uint64_t activation_nbytes;    /* activations and scratch of the largest micro-batch */
    uint64_t sample_nbytes;        /* keys, values and activations of samples */
    uint64_t peak_nbytes;          /* of all of these; on_device: without the snapshot, which is the host's */
    uint64_t all_ranks_nbytes;     /* of all ranks: what they share is counted once (PSS) */
    /* Bytes are of the device's memory, exactly what a run takes there in one piece. Gradients are a packet's; the reduced ones are the optimizer's. */
    bool on_device;
    uint64_t least_nbytes;         /* on_device, where activations are kept by what fits: the peak if every block is recomputed; else 0 */
    uint64_t largest_micro_ntok;
    uint64_t gathered_step_nbytes; /* parameters of others that it reads in a step, mapped or copied */
    uint64_t reduced_step_nbytes;  /* gradients of others that it reads in a step */
};
/* What is trained on, or evaluated, after cutting and packing. */
struct train_data_facts {
    uint64_t ndocs, ntok, nsupervised, longest_ntok, nrows; /* nrows: of an epoch; micro-batches under data.plan */
    uint64_t nempty; /* documents without a supervised token, under data.plan; else they are left out */
    bool by_plan;
};

/* What a run is, as it starts. */
struct train_start {
    const struct train_config *config;
    const char *family;   /* "llama" */
    uint32_t nranks;
    unsigned nthreads;    /* of each */
    const char *device;   /* rank 0's: "NVIDIA H200, sm_90"; NULL: the processor */
    bool copies;          /* parameters are gathered by copying */
    uint64_t step;        /* done: where a resumed run goes on */
    uint64_t warmup_steps;
    const char *date;     /* that the data shows; NULL: it shows none */
    struct train_plan plan;
    struct train_data_facts data, eval; /* eval: zero without data.eval */
};
FSDPCK_API int train_plan(const struct train_config *config, const struct train_options *opt, struct train_plan *out, struct fsdpck_error *err);

/* One rank in this process, without files of a run: for tests, and for looking into a step. Of opt: nthreads, note, ctx, device, module. */
struct train_session;
FSDPCK_API int train_session_open(const struct train_config *config, const struct train_options *opt, struct train_session **out, struct fsdpck_error *err);
FSDPCK_API void train_session_close(struct train_session *s); /* NULL does nothing */
/* Gradients of a step (from 0), before clipping, and its loss and norm. Parameters stay as they are. */
FSDPCK_API int train_session_gradients(struct train_session *s, uint64_t step, double *loss, double *norm, struct fsdpck_error *err);
/* Logits of micro-batch `micro` of a step: (its tokens, vocabulary), documents one after the other; in fp32, before
 * dtype.output rounds them. Owned by the caller: free(). */
FSDPCK_API int train_session_logits(struct train_session *s, uint64_t step, size_t micro, float **logits, int64_t *ntok, int64_t *nvocab, struct fsdpck_error *err);
/* Trainable parameter i of train_session_ntrained(): name in files, values and gradients (nelem), borrowed; of a device: copies, as they are now. */
FSDPCK_API size_t train_session_ntrained(const struct train_session *s);
FSDPCK_API int train_session_param(struct train_session *s, size_t i, const char **name, float **values, float **gradients, int64_t *nelem,
                                   struct fsdpck_error *err);

#ifdef __cplusplus
}
#endif
#endif
