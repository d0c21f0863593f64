/* SPDX-License-Identifier: Apache-2.0 */
/* Finds a device by name. */
#include "cpu/stream.h"

#include <kernels/stream.h>
#include <stdio.h>
#include <string.h>

const struct kern_device *kern_device_find(const char *name, char *message)
{
    if (strcmp(name, "cpu") == 0)
        return &cpu_device;
    snprintf(message, KERN_MESSAGE_BYTES, "there is no device '%s' in this build: it has 'cpu'", name);
    return NULL;
}
