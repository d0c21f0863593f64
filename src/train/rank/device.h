/* SPDX-License-Identifier: Apache-2.0 */
/* The device that a rank computes on. */
#ifndef TRAIN_DEVICE_H
#define TRAIN_DEVICE_H

#include <kernels/module.h>

#include "rank/rank.h"

struct rank_device {
    const struct kern_device *device;
    int index;
    const struct kern_module *module; /* NULL: the processor, which is part of the program */
    struct kern_device_facts facts;   /* where there is a module */
    uint32_t nsharing;                /* ranks on it, this one among them */
    const struct kern_links
        *links; /* all ranks' devices are linked by these; NULL: they are not, or there is one rank */
};

/* A rank's communicator is that of linked devices: also where there is no other rank. */
static inline bool device_is_linked(const struct rank_device *d, uint32_t nranks)
{
    return d->device->apart && (d->links || nranks == 1);
}

/* Before the ranks part: whether there is what opt->device asks for. Starts no driver. */
int device_check(const struct train_options *opt, struct fsdpck_error *err);
/* In a rank's process, which may not fork from now on. local: the rank's number on its host. */
int device_open(const struct job *job, uint32_t local, struct rank_device *out, struct fsdpck_error *err);
/* Collective: who else is on it, where it is apart. */
int device_count_sharing(struct rank_device *d, struct comm *host, struct fsdpck_error *err);

#endif
