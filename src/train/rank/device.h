/* SPDX-License-Identifier: Apache-2.0 */
/* The device that a rank computes on. */
#ifndef TRAIN_DEVICE_H
#define TRAIN_DEVICE_H

#include <kernels/module.h>

#include "rank/rank.h"

struct rank_device {
    const struct kern_device *device;
    int index;
    const struct kern_module *module; /* NULL: the CPU, which is built in */
    struct kern_device_facts facts;   /* valid with a module */
    uint32_t nsharing;                /* number of ranks on the device, including this one */
    const struct kern_links *links;   /* connects the devices of all ranks; NULL: not linked, or a single rank */
};

/* True if the rank uses the communicator for linked devices; a single rank does as well. */
static inline bool device_is_linked(const struct rank_device *d, uint32_t nranks)
{
    return d->device->separate_memory && (d->links || nranks == 1);
}

/* Call before the ranks start. Checks that opt->device exists. Does not initialise the driver. */
int device_check(const struct train_options *opt, struct fsdpck_error *err);
/* Call in a process that does not fork afterwards. name: of train_options, as is module; the number of the device goes
 * by `local`. */
int device_find(const char *name, const char *module, uint32_t local, struct rank_device *out,
                struct fsdpck_error *err);
/* The same for a rank. local: the rank's number on its host. */
int device_open(const struct job *job, uint32_t local, struct rank_device *out, struct fsdpck_error *err);
/* Collective. Counts the ranks on the device, if it has separate memory. */
int device_count_sharing(struct rank_device *d, struct comm *host, struct fsdpck_error *err);

#endif
