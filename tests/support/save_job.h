/* SPDX-License-Identifier: Apache-2.0 */
/* Saves by several processes that share a directory and a barrier. A test describes a model, its distribution over
 * ranks, the faults to inject, and the expected result. */
#ifndef TESTS_SAVE_JOB_H
#define TESTS_SAVE_JOB_H

#include <fsdpck/fsdpck.h>

#include <pthread.h>
#include <sys/types.h>

#include "model.h"

enum { MAX_RANKS = 8, MAX_TENSORS = 12, MAX_BOXES = 24 };

struct save_shared { /* memory shared by all ranks */
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    uint32_t nranks, nwaiting, generation;
    int code[MAX_RANKS];
    unsigned ncalls[MAX_RANKS]; /* calls of the barrier */
    struct fsdpck_error err[MAX_RANKS];
    char save_id[MAX_RANKS][37];
};

struct save_spread { /* distribution of a tensor */
    int mesh;        /* index into job.meshes, or -1: explicit boxes */
    struct fsdpck_placement placements[FSDPCK_MAX_MESH_DIMS];
    size_t nboxes; /* explicit boxes */
    uint64_t offset[MAX_BOXES][MODEL_MAX_DIMS], size[MAX_BOXES][MODEL_MAX_DIMS];
    uint32_t rank[MAX_BOXES];
    struct fsdpck_key path[3];
    uint32_t npath;
    bool has_content; /* every rank sees whole rows, so the content id is known */
};

struct save_job;
/* Called in a rank's process before it saves; may spoil its request or its I/O. */
typedef void (*save_spoil_fn)(struct save_job *job, struct fsdpck_save_request *req, struct fsdpck_save_tensor *tensors,
                              struct fsdpck_io *io);

struct save_job {
    char *root, *out; /* root contains only out */
    struct model model;
    struct save_spread spreads[MAX_TENSORS];
    struct fsdpck_mesh meshes[4];
    uint32_t nranks;
    uint64_t seed;
    const char *state, *assets;
    bool in_place;     /* shard files then have other names */
    bool force, alias; /* alias: "tied.weight" is another name of tensor 0 */
    unsigned fail_at;
    uint32_t fail_from, fail_to; /* ranks whose barrier fails */
    save_spoil_fn spoil;
};

struct save_run {
    struct save_shared *shared;
    pid_t pids[MAX_RANKS];
};

struct save_job save_job_new(uint64_t seed, uint32_t nranks); /* without tensors, in a separate directory */
void save_job_free(struct save_job *job);
/* Adds n random tensors, each distributed by a placement rule or as explicit boxes. */
void save_job_add_tensors(struct save_job *job, size_t n, uint64_t max_nbytes);

struct save_run save_job_start(struct save_job *job);                             /* runs each rank as a process */
struct save_shared *save_job_finish(const struct save_run *run, uint32_t nranks); /* the caller unmaps the result */
void save_job_succeeds(struct save_job *job);
/* Checks that every rank fails and that the directory is unchanged. Returns the error of `rank`. */
struct fsdpck_error save_job_fails(struct save_job *job, uint32_t rank);

void save_job_check(struct save_job *job); /* checks that the output is the model */
/* Checks that nothing is beside the checkpoint, and nothing unexpected in it. */
void save_job_check_tidy(const struct save_job *job);

#endif
