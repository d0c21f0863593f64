/* SPDX-License-Identifier: Apache-2.0 */
/* A kind of device that is no part of the program: a shared library that is loaded when it is asked for, since what it needs in turn (a driver, hundreds of
 * megabytes of kernels) is not everywhere, and slow to load. It exports one symbol, KERN_MODULE_SYMBOL, a struct kern_module. */
#ifndef KERNELS_MODULE_H
#define KERNELS_MODULE_H

#include <kernels/link.h>
#include <kernels/stream.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KERN_MODULE_SYMBOL "kern_module"

/* Which device it is, and what is free on it now. */
struct kern_device_facts {
    char name[128];       /* "NVIDIA H200, sm_90" */
    uint64_t id[2];       /* the device's own, whatever its index is where it is one of those that this process may see */
    uint64_t total_nbytes, free_nbytes;
};

struct kern_module {
    /* What the module was built with: tables of another build are not called into. */
    const char *build;    /* KERN_BUILD */
    uint32_t ops_nbytes, device_nbytes, module_nbytes;
    const struct kern_device *device;
    const struct kern_links *links; /* between devices of several ranks; NULL: the module has none */
    /* How many devices there are that its kernels run on. Starts the driver, so that the process may not fork any more. None, too old a driver: a failure, and
     * message (KERN_MESSAGE_BYTES) says which. */
    int (*count)(int *ndevices, char *message);
    /* Fails where the device is too old for the kernels. */
    int (*describe)(int index, struct kern_device_facts *out, char *message);
};

/* Loads a module and looks at it, not at its devices. It stays loaded. On failure *out is NULL and message (KERN_MESSAGE_BYTES) says why. */
int kern_module_open(const char *path, const struct kern_module **out, char *message);

#ifdef __cplusplus
}
#endif
#endif
