/* The processor, or a device out of a module. What is not there is said in one line, with what can be done instead. */
#include "run/device.h"

#include <string.h>

int device_check(const struct train_options *opt, struct fsdpck_error *err)
{
    if (!opt->device || strcmp(opt->device, "cpu") == 0)
        return 0;
    if (!opt->module) {
        fsdpck_error_set(err, FSDPCK_ERR_IO, NULL, "device '%s': there is no module for it, neither beside the program nor in its lib folder", opt->device);
        fsdpck_error_hint(err, "build it where nvcc is found, or train on the processor with --device cpu");
        return err->code;
    }
    return 0;
}

static int refuse(const char *device, const char *message, struct fsdpck_error *err)
{
    fsdpck_error_set(err, FSDPCK_ERR_IO, NULL, "device '%s': %s", device, message);
    fsdpck_error_hint(err, "--device cpu trains on the processor");
    return err->code;
}

int device_open(const struct job *job, uint32_t local, uint32_t nlocal, struct rank_device *out, struct fsdpck_error *err)
{
    const char *name = job->opt->device ? job->opt->device : "cpu";
    char message[KERN_MESSAGE_BYTES] = "";
    int ndevices = 0;
    *out = (struct rank_device){ .alone = true };
    if (strcmp(name, "cpu") == 0) {
        out->device = kern_device_find(name, message);
        return out->device ? 0 : refuse(name, message, err);
    }
    if (kern_module_open(job->opt->module, &out->module, message) != KERN_OK || out->module->count(&ndevices, message) != KERN_OK)
        return refuse(name, message, err);
    out->device = out->module->device;
    out->index = (int)(local % (uint32_t)ndevices);
    out->alone = nlocal <= (uint32_t)ndevices;
    return out->module->describe(out->index, &out->facts, message) == KERN_OK ? 0 : refuse(name, message, err);
}
