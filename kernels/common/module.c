/* SPDX-License-Identifier: Apache-2.0 */
/* Loads device modules. Its messages address the user who asked for a device. */
#include <kernels/module.h>

#include <dlfcn.h>
#include <kernels/memory.h>
#include <kernels/ops.h>
#include <stdio.h>
#include <string.h>

static int check(const struct kern_module *m, const char *path, char *message)
{
    if (m && m->module_nbytes == sizeof(*m) && m->ops_nbytes == sizeof(struct kern_ops) &&
        m->device_nbytes == sizeof(struct kern_device) && strcmp(m->build, KERN_BUILD) == 0)
        return KERN_OK;
    snprintf(message, KERN_MESSAGE_BYTES, "the module '%.160s' belongs to another build than this program", path);
    return KERN_ERR_DEVICE;
}

int kern_module_open(const char *path, const struct kern_module **out, char *message)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    *out = NULL;
    if (!library) {
        const char *why = dlerror();
        snprintf(message, KERN_MESSAGE_BYTES, "the module cannot be loaded: %.200s", why ? why : "no reason given");
        return KERN_ERR_DEVICE;
    }
    const struct kern_module *m = dlsym(library, KERN_MODULE_SYMBOL);
    int rc = check(m, path, message);
    if (rc == KERN_OK)
        *out = m;
    else
        dlclose(library);
    return rc;
}
