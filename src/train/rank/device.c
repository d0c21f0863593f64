/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the CPU or a device of a module. A missing device is reported in one line, with the alternatives. */
#include "rank/device.h"

#include <string.h>

int device_check(const struct train_options *opt, struct fsdpck_error *err)
{
    if (!opt->device || strcmp(opt->device, "cpu") == 0)
        return 0;
    if (!opt->module) {
        fsdpck_error_set(err, FSDPCK_ERR_IO, NULL,
                         "device '%s': there is no module for it, neither beside the program nor in its lib folder",
                         opt->device);
        fsdpck_error_hint(err, "build it where nvcc is found, or compute on the processor with --device cpu");
        return err->code;
    }
    return 0;
}

static int refuse(const char *device, const char *message, struct fsdpck_error *err)
{
    fsdpck_error_set(err, FSDPCK_ERR_IO, NULL, "device '%s': %s", device, message);
    fsdpck_error_hint(err, "--device cpu computes on the processor");
    return err->code;
}

int device_find(const char *name, const char *module, uint32_t local, struct rank_device *out, struct fsdpck_error *err)
{
    char message[KERN_MESSAGE_BYTES] = "";
    int ndevices = 0;
    *out = (struct rank_device){ .nsharing = 1 };
    name = name ? name : "cpu";
    if (strcmp(name, "cpu") == 0) {
        out->device = kern_device_find(name, message);
        return out->device ? 0 : refuse(name, message, err);
    }
    if (kern_module_open(module, &out->module, message) != KERN_OK || out->module->count(&ndevices, message) != KERN_OK)
        return refuse(name, message, err);
    out->device = out->module->device;
    out->index = (int)(local % (uint32_t)ndevices);
    return out->module->describe(out->index, &out->facts, message) == KERN_OK ? 0 : refuse(name, message, err);
}

int device_open(const struct job *job, uint32_t local, struct rank_device *out, struct fsdpck_error *err)
{
    return device_find(job->opt->device, job->opt->module, local, out, err);
}

/* Compares device ids, not indices: if a launcher shows each rank only one device, its index is 0 on every rank. */
int device_count_sharing(struct rank_device *d, struct comm *host, struct fsdpck_error *err)
{
    enum { WORDS = sizeof d->facts.id / sizeof *d->facts.id, AT_ONCE = COMM_MAX_SUM / WORDS };
    uint64_t ids[AT_ONCE][WORDS];
    int rc = 0;
    if (!d->device->separate_memory || host->nranks == 1)
        return 0;
    d->nsharing = 0;
    for (uint32_t first = 0; first < host->nranks && !rc; first += AT_ONCE) {
        const uint32_t n = host->nranks - first < AT_ONCE ? host->nranks - first : AT_ONCE;
        memset(ids, 0, sizeof ids);
        if (host->rank - first < n)
            memcpy(ids[host->rank - first], d->facts.id, sizeof d->facts.id);
        rc = host->ops->sum_u64(host, *ids, n * WORDS, err);
        for (uint32_t q = 0; q < n && !rc; q++)
            d->nsharing += memcmp(ids[q], d->facts.id, sizeof d->facts.id) == 0;
    }
    return rc;
}
