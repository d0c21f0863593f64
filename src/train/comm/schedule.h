/* SPDX-License-Identifier: Apache-2.0 */
/* The schedule of gathers: when each group of parameters is gathered, and into which buffer. It is fixed before the
 * first step and the same on every rank. Pure functions. */
#ifndef TRAIN_SCHEDULE_H
#define TRAIN_SCHEDULE_H

#include <fsdpck/error.h>

/* A use of a group's parameters, in the order of a micro-batch. */
struct schedule_use {
    uint32_t group;
    bool backward;
};

struct schedule_entry {
    uint32_t group, slot;
    bool gather;    /* false: the slot already holds the group */
    uint32_t after; /* number of uses that must be over before the slot may be overwritten */
    uint32_t ahead; /* the gather may start when the use this many earlier begins */
};

struct schedule_request {
    const struct schedule_use *uses;
    uint32_t nuses, ngroups;
    uint32_t forward_prefetch, backward_prefetch;
    const bool *stays; /* (ngroups) true: has its own buffer and is gathered once; the others take turns in the ring */
};

struct schedule {
    struct schedule_entry *entries; /* (nentries) */
    uint32_t nentries, nslots;      /* the ring's slots, then those of the groups with their own buffers */
    uint32_t *slot_group;           /* (nslots) the group that owns the slot; UINT32_MAX: the ring */
};

int schedule_make(const struct schedule_request *req, struct schedule *out, struct fsdpck_error *err);
void schedule_free(struct schedule *s);
uint64_t schedule_hash(const struct schedule *s);

#endif
