/* SPDX-License-Identifier: Apache-2.0 */
/* Gathers groups of parameters into a ring of buffers, ahead of their use, by a fixed schedule, on a thread of its own. Where data moves on a stream, gathers and
 * kernels are kept apart by events; where a gather is only put on its way there is no thread: the caller's does it, at fixed places of its program. Knows of groups
 * and bytes only. */
#ifndef TRAIN_RING_H
#define TRAIN_RING_H

#include <kernels/stream.h>

#include "comm/comm.h"
#include "comm/schedule.h"

struct ring;

/* Its pieces; those that are trained are the last ones. */
struct ring_group {
    const struct comm_piece *pieces; /* (npieces) borrowed */
    size_t npieces, nfrozen;
    size_t nbytes; /* that they fill, with what a gather of full shards writes behind the last one */
};

/* Where the buffers are, and what uses them. Borrowed. */
struct ring_place {
    char *memory; /* ring_nbytes, aligned to 64 */
    const struct kern_device *device;
    int index;
    struct kern_stream *compute; /* kernels of the groups that are entered and not yet left are put on it */
};

enum ring_mode {
    RING_ALL,     /* everything is gathered */
    RING_TRAINED, /* what stays has its frozen parameters already */
    RING_NOTHING, /* what stays is whole already */
};

struct ring_times {
    uint64_t waited_ns;   /* the caller, or the compute stream, stood still for what it entered: exposed */
    uint64_t gathered_ns; /* a thread, or a stream, was busy gathering, exposed or hidden */
    uint64_t nbytes;      /* gathered */
};

/* schedule, groups (ngroups) and comm (COMM_GATHER) are borrowed. */
int ring_new(struct comm *comm, const struct schedule *schedule, const struct ring_group *groups, uint32_t ngroups, const struct ring_place *place,
             struct ring **out, struct fsdpck_error *err);
void ring_free(struct ring *r); /* NULL does nothing */
uint64_t ring_nbytes(const struct schedule *schedule, const struct ring_group *groups, uint32_t ngroups);

/* A micro-batch begins; every rank begins it, with the same mode. It has the first `nuses` uses of the schedule and must come to all of them. */
void ring_begin(struct ring *r, enum ring_mode mode, uint32_t nuses);
/* The next use of the schedule: waits until the group is there. *data stays until ring_leave. */
int ring_enter(struct ring *r, uint32_t group, char **data, struct fsdpck_error *err);
void ring_leave(struct ring *r);
struct ring_times ring_times(const struct ring *r);

#endif
