/* SPDX-License-Identifier: Apache-2.0 */
/* Gathers groups of parameters into a ring of buffers on its own thread, ahead of their use, by a fixed schedule. If
 * data moves on a stream, events order gathers and kernels. If gathers are only enqueued on a stream, there is no
 * thread: the caller enqueues them at fixed points of its program. Knows only groups and bytes. */
#ifndef TRAIN_RING_H
#define TRAIN_RING_H

#include <kernels/stream.h>

#include "comm/comm.h"
#include "comm/schedule.h"

struct ring;

/* The pieces of a group; trainable ones come last. */
struct ring_group {
    const struct comm_piece *pieces; /* (npieces) borrowed */
    size_t npieces, nfrozen;
    size_t nbytes; /* bytes of the pieces, plus the padding that a gather of full shards writes after the last one */
};

/* The buffers, and the device and stream that use them. Borrowed. */
struct ring_device {
    char *memory; /* ring_nbytes, aligned to 64 */
    const struct kern_device *device;
    int index;
    struct kern_stream *compute; /* the stream for kernels that use groups between enter and leave */
};

/* The parameters that have changed since the micro-batch before. Others are not gathered again into groups with their
 * own buffers, nor kept again. */
enum ring_change { RING_ALL, RING_TRAINED, RING_NOTHING };

struct ring_times {
    uint64_t waited_ns;   /* time that the caller, or the compute stream, waited for groups: exposed */
    uint64_t gathered_ns; /* time that the thread, or the stream, spent gathering, exposed or hidden */
    uint64_t nbytes;      /* bytes gathered */
};

/* schedule, groups (ngroups) and comm (COMM_GATHER) are borrowed. */
int ring_new(struct comm *comm, const struct schedule *schedule, const struct ring_group *groups, uint32_t ngroups,
             const struct ring_device *on, struct ring **out, struct fsdpck_error *err);
void ring_free(struct ring *r); /* NULL does nothing */
uint64_t ring_nbytes(const struct schedule *schedule, const struct ring_group *groups, uint32_t ngroups);

/* Begins a micro-batch, on every rank with the same change. It covers the first `nuses` uses of the schedule, and the
 * caller must enter all of them. */
void ring_begin(struct ring *r, enum ring_change change, uint32_t nuses);
/* Enters the next use of the schedule: waits until the group is gathered. *data stays valid until ring_leave. */
int ring_enter(struct ring *r, uint32_t group, char **data, struct fsdpck_error *err);
void ring_leave(struct ring *r);
struct ring_times ring_times(const struct ring *r);
uint64_t ring_waited_ns(const struct ring *r, uint32_t group); /* the part of waited_ns for one group */

#endif
