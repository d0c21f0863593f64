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
    uint32_t group, slot; /* slot: schedule.nslots if the group is not gathered */
    bool gather;          /* false: the slot already holds the group, or it needs none */
    bool keep;            /* after this gather, a part of the group is kept */
    bool kept;            /* the gather is from the parts that were kept */
    uint32_t after;       /* number of uses that must be over before the slot may be overwritten */
    uint32_t ahead;       /* the gather may start when the use this many earlier begins */
};

struct schedule_group {
    bool stays; /* has its own buffer and is gathered once */
    bool apart; /* takes turns with other such groups in one buffer apart from the ring; never two at once */
    bool whole; /* is not gathered: it is at rest on every rank */
    bool keeps; /* the first gather is from all parts at rest, later ones from parts that are kept */
    uint32_t forward_prefetch, backward_prefetch; /* uses ahead of which the group may be gathered */
};

struct schedule_request {
    const struct schedule_use *uses;     /* (nuses) */
    const struct schedule_group *groups; /* (ngroups) those that neither stay nor are apart take turns in the ring */
    uint32_t nuses, ngroups;
};

struct schedule {
    struct schedule_entry *entries; /* (nentries) */
    uint32_t nentries, nslots; /* the ring's slots, that apart from it, those of the groups with their own buffers */
    uint32_t *slot_group;      /* (nslots) the group that owns the slot; UINT32_MAX: groups take turns in it */
};

int schedule_make(const struct schedule_request *req, struct schedule *out, struct fsdpck_error *err);
void schedule_free(struct schedule *s);
uint64_t schedule_hash(const struct schedule *s);

#endif
