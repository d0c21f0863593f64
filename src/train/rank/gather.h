/* SPDX-License-Identifier: Apache-2.0 */
/* Plans the gathers of a layout: groups and uses for a ring of buffers, according to fsdp.* of the config. If ranks map
 * each other's rows, there is nothing to gather. */
#ifndef TRAIN_GATHER_H
#define TRAIN_GATHER_H

#include "comm/ring.h"
#include "model/compute.h"
#include "rank/job.h"

struct gather;

/* c: its group addresses follow the gathers. memory: gather_sizes.buffer_nbytes of device memory, borrowed; unused if
 * ranks map. */
int gather_new(const struct job *job, struct comm *comm, struct compute *c, char *memory, struct gather **out,
               struct fsdpck_error *err);
/* Announces that this rank's rows of the parameters have changed: all of them, or the trained ones. */
int gather_publish(struct gather *g, bool all, struct fsdpck_error *err);
void gather_free(struct gather *g); /* NULL does nothing */
/* The hook of a micro-batch. */
struct compute_hook gather_hook(struct gather *g);
/* Begins a micro-batch. first: the first since the parameters changed; backward: with its backward pass. Every rank
 * must call it. */
void gather_begin(struct gather *g, bool first, bool backward);
struct ring_times gather_times(const struct gather *g);
uint64_t gather_hash(const struct gather *g); /* hash of the schedule of collectives */

/* Sizes, computed before the ranks start. */
struct gather_sizes {
    uint64_t buffer_nbytes;      /* of the ring and the resident groups */
    uint64_t largest_nbytes;     /* of the largest group */
    uint64_t micro_nbytes;       /* bytes gathered in the first micro-batch of a step */
    uint64_t later_micro_nbytes; /* in each further micro-batch */
};
int gather_count(const struct job *job, struct gather_sizes *out, struct fsdpck_error *err);

#endif
