/* SPDX-License-Identifier: Apache-2.0 */
/* The trainer, as in `fsdptrain run`, and functions for tests. A run is defined by its config and options. The library
 * prints nothing and never ends the process of the caller. It reads two environment variables, FSDPTRAIN_REPLAY and
 * FSDPTRAIN_CUDA_WARPGROUPS, which select between ways of computing for comparison. */
#ifndef TRAIN_TRAIN_H
#define TRAIN_TRAIN_H

#include <fsdpck/source.h>
#include <sys/types.h>
#include <train/config.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One line of metrics.jsonl. */
struct train_metrics {
    const char *tenant;    /* of a run with tenants; else NULL */
    uint64_t step, nsteps; /* steps done, this one included; of the whole training */
    double loss, grad_norm, lr;
    uint64_t ntok, nsupervised;
    double tokens_per_second, step_seconds, data_wait_seconds, comm_seconds;
    double comm_gather_seconds,
        comm_exchange_seconds;  /* parts of comm_seconds: for parameters, for sums of gradients */
    const double *busy_seconds; /* (nranks) what each rank computed before the gradient norm, without waiting for
                                   others; valid during the call */
    uint64_t
        from_hosts_nbytes; /* that all ranks received from ranks of other hosts since the norm of the step before */
    uint32_t nranks, slowest_rank;  /* slowest_rank: that with the most busy_seconds */
    double comm_hidden_seconds;     /* gathers and exchanges that the computation hid: not in comm_seconds */
    double save_stall_seconds;      /* stall before the next step, while the state to save is copied */
    bool offloads;                  /* the optimizer state is in a file (fsdp.offload) */
    double offload_wait_seconds;    /* the update waited for the file */
    double offload_hidden_seconds;  /* reads and writes of the file that hid behind the computation and the update */
    uint64_t offload_nbytes;        /* read and written */
    bool evaluated;                 /* whether data.eval was evaluated after this step */
    double eval_loss, eval_seconds; /* mean over the supervised tokens of data.eval */
    uint64_t eval_nsupervised;
    uint64_t gathered_nbytes; /* copied into buffers; 0 if parameters are mapped */
    uint64_t rss_nbytes;      /* of rank 0 */
    uint64_t pss_nbytes; /* of all ranks, shared memory counted once; measured in the first step and every hundredth */
};

struct train_start;
struct train_result;

/* Phases of a start, before the first step has ended. The comments name the unit of progress. */
enum train_phase {
    TRAIN_TOKENIZING, /* bytes of text */
    TRAIN_ENCODING,   /* texts, then pictures */
    TRAIN_LOADING,    /* bytes of weights: the rows of rank 0, as stored in files */
    TRAIN_FIRST_STEP  /* groups of parameters passed, forward and backward */
};

/* Zero-initialise: every zero means the default. */
struct train_options {
    uint32_t nranks;    /* local processes; default 1 */
    unsigned nthreads;  /* of each rank; default: the processors that this process may use, divided among the ranks */
    const char *resume; /* "auto" (default), "never", or a checkpoint directory */
    double patience_seconds; /* ranks that wait longer than this for another one name it and fail; default 600 */
    /* Called in the process of rank 0 when everything is loaded, before the first step; may be NULL. */
    void (*on_start)(void *ctx, const struct train_start *start);
    /* Called there after each step that log.every selects, each evaluation and the last step; may be NULL. */
    void (*on_step)(void *ctx, const struct train_metrics *metrics);
    /* Called in the process of the caller for each tenant, when all have ended; may be NULL. */
    void (*on_tenant_end)(void *ctx, const char *name, const struct train_config *config,
                          const struct train_result *result);
    /* For a run with tenants of local ranks: reads its config anew, in the process of the caller, which frees it. NULL:
     * the tenants stay those of the start. */
    int (*reread)(void *ctx, struct train_config *out, struct fsdpck_error *err);
    void (*note)(void *ctx, const char *line); /* as in fsdpck_options */
    /* Called besides for a note of a tenant that has started, in the process of its rank 0; line is without its name.
     * May be NULL. */
    void (*on_tenant_note)(void *ctx, const struct train_config *config, const char *line);
    /* Progress of a phase; called in the process of rank 0, or before the ranks are started. May be NULL. */
    void (*phase)(void *ctx, enum train_phase phase, uint64_t done, uint64_t total);
    /* Called in the process of a rank whose supervisor was killed, just before the rank exits: nobody else can report
     * it. May be NULL. */
    void (*lost)(void *ctx, const struct fsdpck_error *err);
    void *ctx;
    const volatile int *stop; /* nonzero: finish the step, save and return. May be NULL */
    const volatile int
        *saves; /* number of extra saves requested so far; read in the process of rank 0 only. May be NULL */
    /* Set if a launcher (mpirun, srun) started this process as one rank of launched_nranks; 0: no launcher. Such ranks
     * communicate by MPI. */
    uint32_t launched_rank, launched_nranks;
    bool dies_of_sigterm; /* the launcher ends all ranks soon after SIGTERM */
    /* Names of the launcher's processes, up to NULL, if it never ends after a host was lost: it is killed then. NULL:
     * it ends by itself. */
    const char *const *hanging_launcher;
    bool several_hosts;                       /* the ranks are on several hosts: parameters are gathered by copying */
    uint32_t launched_local, launched_nlocal; /* index among the ranks on its host, and their number */
    const char *device;                       /* "cpu" (default) or "cuda" */
    const char *module;                       /* path of the module that provides the device; NULL: none */
    bool profile;      /* time the kernels of rank 0: notes at the end, and output_dir/profile.json */
    const char *rates; /* train_plan, keys that are "auto": predict times from this file of rates; NULL: see cache */
    const char *cache; /* folder that keeps the rates of this machine, which are measured if it lacks them; NULL:
                          train_plan predicts no times, a choice measures anew */
    bool on_paper;     /* train_plan: the model may have no weights, and there may be more ranks than can run */
    uint32_t ranks_per_host; /* train_plan: of hosts of equal size; default: all ranks are on one. With several_hosts */
    uint64_t rank_nbytes; /* train_plan: host memory that a rank may take; default: the free memory, divided among the
                             ranks */
    bool copy_gathers;    /* gather parameters by copying on one host too, instead of mapping them */
    /* Not 0: if ranks are lost, goes on with those that are left, if there are at least so many. For local ranks. */
    uint32_t elastic_nranks;
    uint32_t max_restarts; /* how often it does so; then the run ends. 0: never */
    const char *keeper;    /* for ranks of a launcher, or one rank: name of the process of each host (train_keep) that
                              keeps the copies    of checkpoint.memory_every in memory. NULL: no copies */
};

struct train_result {
    uint64_t nsteps;   /* of the whole run */
    uint64_t ndone;    /* steps done */
    uint64_t nskipped; /* steps of this call that were skipped because gradients were not finite (train.on_nonfinite) */
    uint64_t ntrailing; /* how many of the last steps were skipped in a row */
    bool diverged; /* all steps are done, but the last ten or half of them were skipped: the result is not exported */
    bool stopped;  /* a stop was requested before the end; the checkpoint is saved */
    bool reported_elsewhere; /* the run failed, and another rank of the launcher reports why */
    bool lost;               /* the run failed because a rank or a host was lost */
    bool save_failed;        /* the last save failed */
    char checkpoint[4096];   /* the last checkpoint, or "" */
    char adapter[4096];      /* of a finished LoRA run, or "" */
    char model[4096];        /* of a finished run that trained all weights: a Hugging Face folder; or "" */
    /* Of a run with tenants, all of the above but reported_elsewhere and lost is 0: */
    size_t ntenants, nfinished; /* nfinished: all their steps are done and saved */
    size_t nstopped, nfailed;   /* a stop came before the end; an error ended a tenant, as a note said */
    int failure;                /* the code of the first such error */
};

/* Starts the ranks, trains, saves and ends the ranks. Blocks. */
FSDPCK_API int train_run(const struct train_config *config, const struct train_options *opt,
                         struct train_result *result, struct fsdpck_error *err);

/* Whether this build can join the ranks of a launcher. */
FSDPCK_API bool train_has_mpi(void);

/* Kills a launcher that waits for a lost host, with its children, such as ssh clients. The caller is its parent. */
FSDPCK_API void train_end_launcher(pid_t launcher);

/* For a rank of a launcher that fails before train_run: tells the other ranks about err. Returns false if another rank
 * reports the same error. */
FSDPCK_API bool train_reports_error(const struct train_options *opt, const struct fsdpck_error *err);

/* Neighbouring groups of parameters of the same size, each of which is gathered in one go. */
struct train_plan_group {
    char pattern[64]; /* "model.layers.0-31" */
    uint32_t ngroups;
    uint64_t nelem, nbytes; /* of each; of the largest where there were too many rows */
    uint32_t nrecomputed;   /* blocks of each that are recomputed in the backward pass */
    uint32_t nshards;       /* ranks of a shard group */
    char strategy[TRAIN_WORD_NBYTES], dtype[TRAIN_WORD_NBYTES];
    const char *when; /* "forward and backward" */
};

enum { TRAIN_PLAN_GROUPS = 64 };

/* Resources that a run will take, computed before anything is loaded. Bytes are those of one rank (a full share;
 * trailing ranks may have less). */
struct train_plan {
    uint64_t nsteps;
    uint64_t ndocs, ntok, nsupervised, longest_ntok, nrows; /* of an epoch of the data, truncated and packed */
    uint64_t nto_encode;                                    /* pictures and texts that the run encodes first */
    uint64_t ntrained, nfrozen;                             /* elements, whole model */
    uint32_t nshards, nreplicas; /* ranks of a shard group; number of shard groups, each with all parameters */
    uint64_t shard_nbytes;       /* the rank's part of all parameters in the compute dtype, or what it shares with other
                                    ranks that map them */
    uint64_t kept_nbytes;        /* the parts of gathered groups that it keeps from the forward to the backward pass
                                    (fsdp.reshard_after_forward with a number) */
    uint64_t gradient_nbytes;    /* gradients of a packet, whole, and its rows of the reduced ones */
    uint64_t optimizer_nbytes;   /* moments of its rows, and fp32 masters where parameters are bf16 */
    uint64_t buffer_nbytes;      /* buffers that groups are gathered into; 0 where ranks map each other's rows */
    uint64_t exchange_nbytes;    /* buffers for sums of gradients that travel between hosts */
    uint64_t expert_nbytes;      /* the whole experts that it computes (fsdp.expert_parallel), a part of the shards */
    uint64_t message_nbytes;     /* room for tokens that it sends to other ranks' experts, however they are chosen */
    uint64_t snapshot_nbytes;    /* a copy of the state to save */
    uint64_t spare_nbytes;       /* the rank's part of the copies in host memory for --elastic */
    uint64_t offload_file_nbytes; /* room on the disk of fsdp.offload; optimizer_nbytes is what passes through memory */
    uint64_t offload_host_nbytes; /* host memory for the state of a rank on a device, with the buffers */
    uint64_t offload_rest_nbytes; /* host memory for the parameters of a rank on a device (fsdp.offload_params) */
    uint64_t offload_step_nbytes; /* read from it in an update, and again written to it */
    uint64_t offload_written_nbytes; /* written to the disk in a step, with parameters and gradients */
    uint64_t offload_params_nbytes;  /* room there for the parameters of all ranks (fsdp.offload_params) */
    uint64_t offload_grads_nbytes;   /* room there for the rank's sums of gradients (fsdp.offload_gradients) */
    uint64_t nrecomputed;            /* blocks that keep only their input and are recomputed in the backward pass */
    uint64_t activation_nbytes;      /* activations and scratch of the largest micro-batch */
    uint64_t sample_nbytes;          /* keys, values and activations of samples */
    uint64_t encoding_nbytes;        /* of the text encoder or the autoencoder, before all these are there */
    uint64_t peak_nbytes; /* the sum of all these but expert_nbytes, or encoding_nbytes; on_device: without the copies
                             on the host */
    uint64_t all_ranks_nbytes; /* of all ranks, shared memory counted once (PSS) */
    /* Bytes are of device memory: exactly what a run allocates there, in one piece. Gradients are those of a packet;
     * the reduced ones count as optimizer state. */
    bool on_device;
    uint64_t least_nbytes; /* on_device with automatic checkpointing of activations: the peak if every block is
                              recomputed; else 0 */
    uint64_t largest_micro_ntok;
    uint64_t gathered_step_nbytes;   /* parameters of other ranks that it reads in a step, mapped or copied */
    uint64_t tokens_step_nbytes;     /* rows of tokens that come from other ranks in a step, where experts are whole on
                                        ranks; if all are chosen alike */
    uint64_t spread_step_nbytes;     /* new values of the parameters that it holds too, from their owners, in a step */
    uint64_t reduced_step_nbytes;    /* gradients of other ranks that it reads in a step */
    uint64_t from_hosts_step_nbytes; /* that all ranks receive from other hosts in a step; 0: on one host;
                                        UINT64_MAX: not known, because ranks of a host share no memory */
    /* Predicted means of the first steps; all 0 if the rates are not known. */
    double step_seconds, exposed_seconds; /* exposed: communication that the computation does not hide */
    double step_ntok;
    struct train_plan_group groups[TRAIN_PLAN_GROUPS]; /* (ngroups) in the order of the model */
    uint32_t ngroups;
};
/* The training or evaluation data after truncation and packing. */
struct train_data_facts {
    uint64_t ndocs, ntok, nsupervised, longest_ntok, nrows; /* nrows: of an epoch; micro-batches under data.plan */
    uint64_t nempty; /* documents without a supervised token, under data.plan; otherwise they are skipped */
    bool by_plan;
};

/* A description of the run at its start. */
struct train_start {
    const char *tenant; /* of a run with tenants, which has one for each; else NULL */
    const struct train_config *config;
    const char *family; /* "llama" */
    uint32_t nranks;
    unsigned nthreads;  /* of each */
    const char *device; /* of rank 0: "NVIDIA H200, sm_90"; NULL: the CPU */
    bool copies;        /* parameters are gathered by copying */
    uint64_t step;      /* steps already done, in a resumed run */
    uint64_t warmup_steps;
    const char *date; /* the date that the data shows; NULL: none */
    struct train_plan plan;
    struct train_data_facts data, eval; /* eval: zero without data.eval */
};
FSDPCK_API int train_plan(const struct train_config *config, const struct train_options *opt, struct train_plan *out,
                          struct fsdpck_error *err);

/* What each tenant of a run takes, and what they share. Bytes are those of one rank. */
struct train_tenant_plan {
    char name[72];
    struct train_plan alone; /* of the run that trains it alone */
    uint64_t own_nbytes;     /* what it adds to the others: adapter, gradients, moments, snapshot, activations,
                                samples */
};

struct train_tenants_plan {
    struct train_tenant_plan *tenants; /* (n) owned */
    size_t n;
    uint64_t base_nbytes;           /* shards of what is frozen, and buffers to gather into */
    uint64_t peak_nbytes;           /* with what is each tenant's own */
    uint64_t gathered_cycle_nbytes; /* parameters of other ranks that it reads for a micro-batch of each tenant */
};

/* For a config with tenants. The caller frees out->tenants. */
FSDPCK_API int train_plan_tenants(const struct train_config *config, const struct train_options *opt,
                                  struct train_tenants_plan *out, struct fsdpck_error *err);

/* One rank in this process, without the files of a run: for tests and for inspecting a step. Of opt it uses nthreads,
 * note, ctx, device and module. Keys that are "auto" have their defaults. */
struct train_session;
FSDPCK_API int train_session_open(const struct train_config *config, const struct train_options *opt,
                                  struct train_session **out, struct fsdpck_error *err);
FSDPCK_API void train_session_close(struct train_session *s); /* NULL does nothing */
/* Computes the gradients of a step (from 0) before clipping, its loss and its gradient norm. Parameters do not change.
 */
FSDPCK_API int train_session_gradients(struct train_session *s, uint64_t step, double *loss, double *norm,
                                       struct fsdpck_error *err);
/* Logits of micro-batch `micro` of a step: (its tokens, vocabulary), documents one after another; fp32, before
 * rounding to dtype.output. The caller frees them. */
FSDPCK_API int train_session_logits(struct train_session *s, uint64_t step, size_t micro, float **logits, int64_t *ntok,
                                    int64_t *nvocab, struct fsdpck_error *err);
/* Trainable parameter i of train_session_ntrained(): its name in files, values and gradients (nelem), borrowed. On a
 * device they are copies of the present values. */
FSDPCK_API size_t train_session_ntrained(const struct train_session *s);
FSDPCK_API int train_session_param(struct train_session *s, size_t i, const char **name, float **values,
                                   float **gradients, int64_t *nelem, struct fsdpck_error *err);

#ifdef __cplusplus
}
#endif
#endif
