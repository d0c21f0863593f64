/* SPDX-License-Identifier: Apache-2.0 */
/* Plans the gathers of a layout: groups and uses for a ring of buffers, according to fsdp.* of the config. There is
 * nothing to gather where ranks map the rows of each other. */
#ifndef TRAIN_GATHER_H
#define TRAIN_GATHER_H

#include "comm/ring.h"
#include "model/compute.h"
#include "rank/job.h"

struct gather;

/* c: whose places follow what is gathered. memory: gather_sizes.buffer_nbytes of its device's, borrowed; not used where
 * ranks map. */
int gather_new(const struct job *job, struct comm *comm, struct compute *c, char *memory, struct gather **out,
               struct fsdpck_error *err);
/* This rank's rows of the parameters have changed, all of them or those that are trained. */
int gather_publish(struct gather *g, bool all, struct fsdpck_error *err);
void gather_free(struct gather *g); /* NULL does nothing */
/* The hook of a micro-batch. */
struct compute_hook gather_hook(struct gather *g);
/* A micro-batch begins: the first since parameters changed, or a later one; with its backward, or forward only. Every
 * rank calls it. */
void gather_begin(struct gather *g, bool first, bool backward);
struct ring_times gather_times(const struct gather *g);
uint64_t gather_hash(const struct gather *g); /* of the schedule of collectives */

/* Before there are ranks. */
struct gather_sizes {
    uint64_t buffer_nbytes;      /* of the ring and of what stays */
    uint64_t largest_nbytes;     /* of a group */
    uint64_t micro_nbytes;       /* gathered in a micro-batch, the first of a step */
    uint64_t later_micro_nbytes; /* in each further one */
};
int gather_count(const struct job *job, struct gather_sizes *out, struct fsdpck_error *err);

#endif
