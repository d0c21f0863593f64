/* SPDX-License-Identifier: Apache-2.0 */
/* A job: everything that the ranks of a run know before they are forked, and values derived from it. */
#ifndef TRAIN_JOB_H
#define TRAIN_JOB_H

#include <fsdpck/lock.h>
#include <train/train.h>

#include "comm/comm_local.h"
#include "config/mesh.h"
#include "data/data.h"
#include "model/compute.h"
#include "rank/offload_sizes.h"

struct samples;   /* run/samples.h */
struct encoding;  /* image/encoding.h */
struct snapshots; /* state/snapshots.h */

/* How a run survives the loss of ranks (--elastic). All zero: it ends. */
struct recovery {
    struct snapshots *snapshots; /* NULL without checkpoint.memory_every */
    uint32_t all_ranks;          /* the number of ranks at the start; job.nranks is smaller after a loss */
    uint64_t step;               /* the step to restore from the chosen snapshot; 0: none */
    uint64_t saved;              /* the step of the newest checkpoint in output_dir; 0: none */
    uint64_t lost_ns;            /* the time of the loss that was noticed last; 0: there was none */
    uint64_t skipped_before;     /* as in struct loop_results */
    bool stopping;               /* a stop was requested before the loss */
    bool again;                  /* the ranks were started again; they resume from what the supervisor chose: */
    bool named;                  /* the checkpoint that --resume names */
};

struct job {
    const char *name; /* of a tenant; else NULL. Borrowed */
    const struct train_config *config;
    const struct train_options *opt;
    struct fsdpck_options fs; /* for libfsdpck; only rank 0 passes on notes */
    struct model model;
    struct packed_weights packed; /* of the model: those that stay quantized */
    struct layout layout;
    struct mesh mesh;             /* of fsdp; its nkept is that of all groups, and param.nshards has the rest of each */
    struct offload_sizes offload; /* of a rank; zeros: its optimizer state stays in memory */
    struct data *data, *eval;     /* eval: NULL without data.eval. data: NULL if nothing is trained */
    int64_t micro_ntok;           /* without data: the tokens of the largest micro-batch */
    struct samples *samples;      /* NULL without sample.prompts */
    struct encoding *encoding;    /* of a run on pictures; else NULL */
    int64_t sample_prompt,
        sample_most; /* tokens of the longest prompt, and of a prompt with its continuation; 0 without samples */
    int64_t sample_height, sample_width; /* of the largest picture that is drawn, in latent pixels; 0: none is */
    uint64_t sample_decoder_nbytes;      /* of the decoder, for that picture */
    struct fsdpck_folder_lock *lock;     /* on output_dir, held by rank 0 and its supervisor; otherwise NULL */
    struct recovery recovery;
    struct job *const *tenants; /* (ntenants) several adapters on one base: the jobs that train each alone. Then the
                                   layout is theirs joined (model/layout_join.h), and data is NULL. Borrowed */
    size_t ntenants;
    bool serves; /* adapters come and go beside the base (train/serve.h): its weights are identified for them */
    uint64_t nsteps;
    char date[12];          /* the date in the data or samples; empty: none */
    uint32_t first, nranks; /* first rank of this process; number of ranks in all processes */
    uint32_t nlocal;        /* number of ranks of this host; 0: the launcher does not say */
    unsigned nthreads;      /* threads per rank */
};

/* Releases all members except samples, encoding, lock and borrowed ones; zeroes job. */
void job_free(struct job *job);
/* Size of the largest micro-batch, of training or evaluation. */
void job_largest(const struct job *job, int64_t *ntok, size_t *ndocs);
int64_t job_largest_ntok(const struct job *job);
/* True if ranks compute on devices with separate memory. */
bool job_has_device_memory(const struct job *job);
/* True if parameters are copied between ranks; otherwise all ranks map all parameters. */
bool job_copies(const struct job *job);
/* The same for the communicator between hosts: true if ranks see only their own rows. */
bool job_copies_on_host(const struct job *job);
/* Number of consecutive ranks that share memory. Between hosts, the ranks of each do, unless they are kept apart
 * (--gather copy). */
uint32_t job_nsharing(const struct job *job);
/* True if each host holds all parameters, so that nothing is gathered between hosts. For hosts of equal size: the
 * communicator knows the others. */
bool job_hosts_hold_all(const struct job *job);
/* True if groups are gathered into buffers. apart: on devices with separate memory. */
bool job_gathers(const struct job *job, bool separate_memory);
/* True if each shard group holds all parameters. Otherwise all ranks map one copy on the host, and devices that are not
 * linked gather from it. */
bool job_has_replicas(const struct job *job, bool linked);
/* True if parts of gathered groups are kept for the backward pass. linked: the ranks' devices are linked. */
bool job_keeps(const struct job *job, bool linked);
/* Bytes of the gradients that a rank exchanges; the size of their widest element; whether some of them are rounded. */
uint64_t job_reduce_nbytes(const struct job *job);
size_t job_reduce_widest(const struct job *job);
bool job_rounds(const struct job *job);
/* True if the optimizer state is in a file. */
bool job_offloads(const struct job *job);
/* True if the parameters are in a file. */
bool job_offloads_params(const struct job *job);
/* True if ranks on devices have the parameters that they hold at rest in host memory. */
bool job_rests_on_host(const struct job *job);
/* True if the run keeps copies of its state in memory, in case ranks are lost. */
bool job_keeps_snapshots(const struct job *job);
/* The ranks of the largest shard group. */
uint32_t job_most_shards(const struct job *job);
/* The ranks that a parameter is gathered from, and that get its new values once. linked: the ranks' devices are
 * linked. */
uint32_t job_gathers_from(const struct job *job, bool linked, const struct param *p);
/* True if the parameter's group is not gathered: every rank has it whole at rest. */
bool job_has_whole(const struct job *job, bool linked, const struct param *p);
/* Where a rank's device has the chunks that it holds at rest, of each parameter: at: (nparams) bytes, or NULL. Returns
 * the bytes of all. The same for pinned memory, if linked devices have them there. */
size_t job_place_on_device(const struct job *job, bool linked, size_t *at);
/* Bytes of the parameters that a rank holds at rest in host memory. */
uint64_t job_rest_nbytes(const struct job *job);
/* Number of consecutive ranks that share a copy of the parameters: those of one shard group of each parameter. */
uint32_t job_ranks_of_copy(const struct job *job);
/* The most bytes of tokens that a rank sends at once to ranks that have their experts; 0: all experts are gathered. */
uint64_t job_trade_nbytes(const struct job *job);
/* Sizes of the memory that ranks share. */
struct comm_sizes job_comm_sizes(const struct job *job);

#endif
