/* SPDX-License-Identifier: Apache-2.0 */
/* The device memory of a rank: one allocation, sized before the first step, and its division. */
#ifndef TRAIN_MEMORY_H
#define TRAIN_MEMORY_H

#include "model/decode.h"
#include "rank/device.h"

/* Bytes of one rank on its device. */
struct memory_sizes {
    uint64_t shard_nbytes,
        contribution_nbytes; /* only if the device has separate memory; otherwise the communicator owns them */
    uint64_t kept_nbytes; /* parts of gathered groups that are kept for the backward pass; only if devices are linked */
    uint64_t state_nbytes; /* reduced gradients, row sums, and moments and masters or buffers for them */
    uint64_t
        received_nbytes; /* contributions of other ranks, and rounded gradients to send; only if devices are linked */
    uint64_t ring_nbytes, activation_nbytes;
    uint64_t window_nbytes; /* that rows pass through which rest in host memory */
    uint64_t sample_nbytes; /* only if the device has separate memory; otherwise allocated when samples are generated */
};

struct memory_map {
    struct memory_sizes sizes;
    struct kern_buffer buffer;
    unsigned char *values, *kept;
    float *contribution, *own, *m, *v, *masters, *received, *window;
    double *row_sums;
    char *ring, *activations, *samples, *offload;
};

/* Sizes of keys, values and activations for the samples of a run; zeros without samples. */
struct decode_sizes memory_samples(const struct job *job, const struct compute *c);
/* c: with the settings to be used. linked: the ranks' devices are linked, or there is one rank. */
int memory_count(const struct job *job, bool separate_memory, bool linked, const struct compute *c,
                 struct memory_sizes *out, struct fsdpck_error *err);
/* Of the reduced gradients that are in memory. */
uint64_t memory_sums_nbytes(const struct job *job);
uint64_t memory_row_sums_nbytes(const struct layout *l);
/* Of the copy of the state that is saved, in host memory. */
uint64_t memory_snapshot_nbytes(const struct job *job);
/* Host memory that a rank may take: opt->rank_nbytes, or its part of what is free. */
uint64_t memory_host_room(const struct job *job);
uint64_t memory_sum(const struct memory_sizes *sizes);
/* fsdp.activation_checkpointing "auto": recomputes as few blocks as necessary for the rank to fit; all blocks if
 * nothing fits. all: (n) the computations of the rank; c->nbytes: what they need together, each from a place of
 * memory_aligned() on. */
int memory_choose(const struct job *job, const struct rank_device *where, bool linked, struct compute *c,
                  struct compute *const *all, size_t n, struct fsdpck_error *err);
/* Lets each of these computations recompute n blocks, and counts anew what they need together. */
void memory_recompute(struct compute *c, struct compute *const *all, size_t nall, int64_t n);
uint64_t memory_aligned(uint64_t nbytes);
/* If the memory is too small, the error names the planned, the free and the possible size. The caller frees map->buffer
 * with the device's memory table. */
int memory_alloc(const struct job *job, const struct rank_device *where, const struct memory_sizes *sizes,
                 struct memory_map *out, struct fsdpck_error *err);
/* Adds a hint to an out-of-memory error that has none. */
void memory_hint(const struct job *job, struct fsdpck_error *err);

#endif
