/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizer state in a file (fsdp.offload): which runs have it, its division into chunks, its memory and its file.
 * Pure: opens nothing. */
#ifndef TRAIN_OFFLOAD_SIZES_H
#define TRAIN_OFFLOAD_SIZES_H

#include "model/layout.h"

enum {
    OFFLOAD_TREES = 3,         /* fp32 values, first and second moments, as in a checkpoint */
    OFFLOAD_DEVICE_BUFFERS = 3 /* on a device: one chunk arrives, one is updated, one leaves */
};

/* Bytes of one rank; zeros without a file of optimizer state. */
struct offload_sizes {
    bool gradients;         /* another file has the sums of gradients */
    bool values;            /* the file has the fp32 masters too; without: parameters are fp32, and stay in memory */
    uint32_t ntrees;        /* that an update reads and writes: 3 with values, else 2 */
    uint64_t nchunks;       /* an update reads, computes and writes one chunk at a time */
    uint64_t tree_nbytes;   /* room for one tree of a chunk, in memory and in the file: a multiple of 4096 */
    uint64_t nbuffers;      /* each holds one chunk; the state is in ntrees * nbuffers * tree_nbytes of memory */
    uint64_t memory_nbytes; /* the buffers, and one tree of a chunk for loading and saving */
    uint64_t device_nbytes; /* the same on a device that has memory of its own; else 0 */
    bool in_memory;         /* the file is host memory, of a rank on a device */
    uint64_t file_nbytes; /* two copies of the state: a checkpoint is written from one while updates change the other */
    uint64_t step_nbytes; /* read in an update, and again written */
};

/* Elements of optimizer memory [at, at + nelem). Begins and ends between rows. */
struct offload_chunk {
    int64_t at, nelem;
};

/* The folder of fsdp.offload; NULL: the state stays in memory, or leaves a device for host memory. */
const char *offload_folder(const struct train_config *config);
/* Refuses values of fsdp.offload that such a run cannot have. */
int offload_check(const struct train_config *config, bool on_device, struct fsdpck_error *err);
/* Refuses too little memory for one row of the model. */
int offload_count(const struct train_config *config, const struct layout *l, bool on_device, struct offload_sizes *out,
                  struct fsdpck_error *err);
/* (sizes->nchunks) */
void offload_cut(const struct layout *l, const struct offload_sizes *sizes, struct offload_chunk *chunks);

#endif
