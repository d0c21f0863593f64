/* SPDX-License-Identifier: Apache-2.0 */
/* A job: everything that all ranks of a run know before they are forked, and values derived from it. */
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
    struct fsdpck_options fs; /* for libfsdpck: notes of rank 0 only */
    struct model model;
    struct layout layout;
    struct data *data, *eval; /* eval: NULL without data.eval */
    struct samples *samples;  /* NULL without sample.prompts */
    int64_t sample_prompt, sample_most; /* tokens of its longest prompt, and of that with its continuation; 0 without */
    struct fsdpck_folder_lock *lock; /* of output_dir, held by the process of rank 0 and its supervisor; else NULL */
    uint64_t nsteps;
    char date[12]; /* that data or samples show; empty: they show none */
    uint32_t first, nranks; /* this process's first rank; how many there are in all processes */
    unsigned nthreads; /* of a rank */
};

/* Releases what job holds except samples, lock and what is borrowed; zeroes it. */
void job_free(struct job *job);
/* Tokens and documents of the largest micro-batch, of training or evaluation. */
void job_largest(const struct job *job, int64_t *ntok, size_t *ndocs);
int64_t job_largest_ntok(const struct job *job);
/* Whether ranks compute on devices whose memory is their own. */
bool job_is_apart(const struct job *job);
/* Whether parameters are gathered into buffers; else all ranks see all of them. */
bool job_copies(const struct job *job);
/* The same of the communicator between hosts' memories: its ranks see their own rows only. */
bool job_copies_on_host(const struct job *job);
/* What its ranks share. */
struct comm_sizes job_comm_sizes(const struct job *job);

#endif
