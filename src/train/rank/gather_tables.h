/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of gathers: one comm_piece per parameter, one ring_group per unit of fsdp.auto_wrap_policy, and the uses of
 * the ring. */
#ifndef TRAIN_GATHER_TABLES_H
#define TRAIN_GATHER_TABLES_H

#include "comm/ring.h"
#include "model/wrap.h"
#include "rank/job.h"

struct gather_tables {
    struct comm_piece *pieces; /* (nparams) */
    struct comm_piece *owned;  /* (nowned) of them, those that are not gathered but published; frozen ones come first */
    size_t nowned, nowned_frozen;
    struct ring_group *groups; /* (ngroups), one per unit */
    size_t *group_at;          /* (layout.ngroups) bytes: offset of a group's parameters in the layout */
    size_t *rest_at;           /* (nparams) as from job_place_on_device() */
    size_t *unit_at;           /* (ngroups) bytes: offset of a unit's */
    uint32_t ngroups;
    struct wrap wrap;
    bool *whole;              /* (ngroups) the unit is not gathered: every rank has it at rest */
    bool *enters, *leaves;    /* (compute.nuses) the use begins or ends one of the ring */
    uint32_t nforward, nuses; /* uses of the ring */
    struct schedule schedule;
};

/* linked: the ranks' devices are linked. keeps: parts of gathered groups are kept for the backward pass. */
int gather_tables_make(const struct job *job, bool linked, bool keeps, struct gather_tables *t,
                       struct fsdpck_error *err);
void gather_tables_free(struct gather_tables *t);

#endif
