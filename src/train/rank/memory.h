/* SPDX-License-Identifier: Apache-2.0 */
/* The device memory of a rank: one allocation, sized before the first step, and its division. */
#ifndef TRAIN_MEMORY_H
#define TRAIN_MEMORY_H

#include "model/decode.h"
#include "rank/device.h"

/* Bytes of one rank on its device. */
struct memory_sizes {
    uint64_t shard_nbytes, contribution_nbytes; /* where the device's memory is apart; else the communicator has them */
    uint64_t state_nbytes;                      /* reduced gradients, moments, masters, row sums */
    uint64_t received_nbytes;                   /* others' contributions and what is sent, where devices are linked */
    uint64_t ring_nbytes, activation_nbytes;
    uint64_t sample_nbytes; /* where the device's memory is apart; else they are taken when there is sampling */
};

struct memory_map {
    struct memory_sizes sizes;
    struct kern_buffer buffer;
    unsigned char *values;
    float *contribution, *own, *m, *v, *masters, *received;
    double *row_sums;
    char *ring, *activations, *samples;
};

/* Keys, values and activations of the samples that a run generates; zeros without samples. */
struct decode_sizes memory_samples(const struct job *job, const struct compute *c);
/* c: as it is to be placed. linked: ranks' devices are, or there is one rank. */
int memory_count(const struct job *job, bool apart, bool linked, const struct compute *c, struct memory_sizes *out,
                 struct fsdpck_error *err);
uint64_t memory_row_sums_nbytes(const struct layout *l);
uint64_t memory_sum(const struct memory_sizes *sizes);
/* fsdp.activation_checkpointing "auto": as few blocks are recomputed as make the rank fit; all of them where none does.
 * c->nbytes follows. */
int memory_choose(const struct job *job, const struct rank_device *where, bool linked, struct compute *c,
                  struct fsdpck_error *err);
/* Fails, naming what was planned, what is free and what would fit, where it does not. The caller frees map->buffer with
 * the device's table. */
int memory_take(const struct job *job, const struct rank_device *where, const struct memory_sizes *sizes,
                struct memory_map *out, struct fsdpck_error *err);
/* To an error that is for lack of memory, and has no hint yet. */
void memory_hint(const struct job *job, struct fsdpck_error *err);

#endif
