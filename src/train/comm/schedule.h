/* SPDX-License-Identifier: Apache-2.0 */
/* The schedule of gathers: when each group of parameters is gathered, and into which buffer. Fixed before the first
 * step, the same on every rank. Pure. */
#ifndef TRAIN_SCHEDULE_H
#define TRAIN_SCHEDULE_H

#include <fsdpck/error.h>

/* A group's parameters are used from here on, in the order of a micro-batch. */
struct schedule_use {
    uint32_t group;
    bool backward;
};

struct schedule_entry {
    uint32_t group, slot;
    bool gather;    /* else the slot has it already */
    uint32_t after; /* so many uses must be over before the slot may be written */
    uint32_t ahead; /* it may be gathered when the use this many before it begins */
};

struct schedule_request {
    const struct schedule_use *uses;
    uint32_t nuses, ngroups;
    uint32_t forward_prefetch, backward_prefetch;
    const bool *stays; /* (ngroups) has a buffer of its own and is gathered once; the others take turns in the ring */
};

struct schedule {
    struct schedule_entry *entries; /* (nentries) */
    uint32_t nentries, nslots;      /* the ring's slots, then those of the groups that stay */
    uint32_t *slot_group;           /* (nslots) whose slot it is; the ring's: UINT32_MAX */
};

int schedule_make(const struct schedule_request *req, struct schedule *out, struct fsdpck_error *err);
void schedule_free(struct schedule *s);
uint64_t schedule_hash(const struct schedule *s);

#endif
