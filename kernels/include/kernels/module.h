/* SPDX-License-Identifier: Apache-2.0 */
/* Device backends as shared libraries, loaded on demand. A backend needs more (a driver, hundreds of megabytes of
 * kernels) than every machine has, and takes time to load. A module exports one symbol, KERN_MODULE_SYMBOL, a struct
 * kern_module. */
#ifndef KERNELS_MODULE_H
#define KERNELS_MODULE_H

#include <kernels/link.h>
#include <kernels/stream.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KERN_MODULE_SYMBOL "kern_module"

/* Identity and memory of a device. */
struct kern_device_facts {
    char name[128]; /* "NVIDIA H200, sm_90" */
    uint64_t id[2]; /* unique id of the device; does not depend on the index that it has in this process */
    uint64_t total_nbytes, free_nbytes;
};

struct kern_module {
    /* Identity of the build. kern_module_open refuses the tables of another build. */
    const char *build; /* KERN_BUILD */
    uint32_t ops_nbytes, device_nbytes, module_nbytes;
    const struct kern_device *device;
    const struct kern_links *links; /* communication between devices of several ranks; NULL: none */
    /* Counts the devices that the kernels of the module can run on. Starts the driver: the process must not fork
     * afterwards. Fails if there is no device or the driver is too old; message (KERN_MESSAGE_BYTES) says which. */
    int (*count)(int *ndevices, char *message);
    /* Fails if the device does not start or is too old for the kernels. */
    int (*describe)(int index, struct kern_device_facts *out, char *message);
};

/* Loads a module and checks its build; does not touch its devices. It is never unloaded. On failure *out is NULL and
 * message (KERN_MESSAGE_BYTES) says why. */
int kern_module_open(const char *path, const struct kern_module **out, char *message);

#ifdef __cplusplus
}
#endif
#endif
