/* SPDX-License-Identifier: Apache-2.0 */
/* A job: everything that the ranks of a run know before they are forked, and values derived from it. */
#ifndef TRAIN_JOB_H
#define TRAIN_JOB_H

#include <fsdpck/lock.h>
#include <train/train.h>

#include "comm/comm_local.h"
#include "data/data.h"
#include "model/compute.h"

struct samples; /* run/samples.h */

struct job {
    const struct train_config *config;
    const struct train_options *opt;
    struct fsdpck_options fs; /* for libfsdpck; only rank 0 passes on notes */
    struct model model;
    struct layout layout;
    struct data *data, *eval; /* eval: NULL without data.eval */
    struct samples *samples;  /* NULL without sample.prompts */
    int64_t sample_prompt,
        sample_most; /* tokens of the longest prompt, and of a prompt with its continuation; 0 without samples */
    struct fsdpck_folder_lock *lock; /* on output_dir, held by rank 0 and its supervisor; otherwise NULL */
    uint64_t nsteps;
    char date[12];          /* the date in the data or samples; empty: none */
    uint32_t first, nranks; /* first rank of this process; number of ranks in all processes */
    unsigned nthreads;      /* threads per rank */
};

/* Releases all members except samples, lock and borrowed ones; zeroes job. */
void job_free(struct job *job);
/* Size of the largest micro-batch, of training or evaluation. */
void job_largest(const struct job *job, int64_t *ntok, size_t *ndocs);
int64_t job_largest_ntok(const struct job *job);
/* True if ranks compute on devices with separate memory. */
bool job_is_apart(const struct job *job);
/* True if parameters are gathered into buffers; otherwise all ranks map all parameters. */
bool job_copies(const struct job *job);
/* The same for the communicator between hosts: true if ranks see only their own rows. */
bool job_copies_on_host(const struct job *job);
/* Sizes of the memory that ranks share. */
struct comm_sizes job_comm_sizes(const struct job *job);

#endif
