/* SPDX-License-Identifier: Apache-2.0 */
/* Plans the gathers of a layout: groups and uses for a ring of buffers, according to fsdp.* of the config. If ranks map
 * each other's rows, there is nothing to gather. */
#ifndef TRAIN_GATHER_H
#define TRAIN_GATHER_H

#include "comm/ring.h"
#include "model/compute.h"
#include "rank/job.h"

struct gather;

/* linked: the ranks' devices are linked. c: its group addresses follow the gathers. memory: gather_sizes.buffer_nbytes
 * of device memory, borrowed; unused if ranks map. */
int gather_new(const struct job *job, bool linked, struct comm *comm, struct compute *c, char *memory,
               struct gather **out, struct fsdpck_error *err);
/* Collective. This rank's rows of the parameters have changed, all of them or the trained ones: brings them to all
 * ranks that hold them. When it returns, all ranks may be gathered from. */
int gather_publish(struct gather *g, bool all, struct fsdpck_error *err);
void gather_free(struct gather *g); /* NULL does nothing */
/* The hook of a micro-batch. */
struct compute_hook gather_hook(struct gather *g);
/* Begins a micro-batch. first: the first since the parameters changed; backward: with its backward pass. Every rank
 * must call it. */
void gather_begin(struct gather *g, bool first, bool backward);
struct ring_times gather_times(const struct gather *g);
/* The part of waited_ns for the group, and those that are gathered with it. */
uint64_t gather_waited_ns(const struct gather *g, uint32_t group);
/* The last group that is gathered with this one. */
uint32_t gather_last_of_unit(const struct gather *g, uint32_t group);
uint64_t gather_hash(const struct gather *g);   /* hash of the schedule of collectives */
uint64_t gather_units(const struct gather *g);  /* hash of which groups are gathered together */
uint64_t gather_policy(const struct gather *g); /* hash of what fsdp.policy says of gathers */

/* Sizes, computed before the ranks start. */
struct gather_sizes {
    uint64_t buffer_nbytes;    /* of the ring and the resident groups */
    uint64_t largest_nbytes;   /* of the largest group */
    size_t kept_from;          /* as comm_on_device.kept_from */
    uint64_t kept_nbytes;      /* of one chunk of each parameter from the first to the last whose group is kept */
    uint64_t kept_used_nbytes; /* of those whose group is kept */
    /* bytes of other ranks' chunks: in the first micro-batch of a step (the run's first step has frozen parameters of
     * resident groups too), and in each later one */
    uint64_t received_nbytes, received_later_nbytes;
};
/* apart, linked: the device has separate memory; the ranks' devices are linked. */
int gather_count(const struct job *job, bool separate_memory, bool linked, struct gather_sizes *out,
                 struct fsdpck_error *err);

/* A use of the ring of buffers in a micro-batch. */
struct gather_use {
    uint64_t first_nbytes,
        later_nbytes;      /* gathered in full for it: in the first micro-batch of a step, and in others */
    uint32_t within;       /* the ranks that it is gathered from */
    uint32_t after, ahead; /* as in struct schedule_entry */
};
/* uses: (at least the uses of the computation) the first *nuses are set. use_of: the use of the ring that each use of
 * the computation belongs to. If nothing is gathered, a use gathers no bytes. */
int gather_timeline(const struct job *job, bool separate_memory, bool linked, struct gather_use *uses, uint32_t *use_of,
                    uint32_t *nuses, struct fsdpck_error *err);

/* ngathers: (layout.ngroups) how often a micro-batch that is trained on gathers each group. */
int gather_counts(const struct job *job, bool linked, uint32_t *ngathers, struct fsdpck_error *err);

#endif
