/* SPDX-License-Identifier: Apache-2.0 */
/* --device: chooses the device of a run and the module for it. */
#ifndef TOOLS_DEVICE_ARG_H
#define TOOLS_DEVICE_ARG_H

#include <limits.h>

struct device_arg {
    const char *name;   /* "cpu" or "cuda" */
    const char *module; /* path; NULL: not found, or not needed */
    char path[PATH_MAX];
};

/* wanted: the option's value; NULL: a GPU if there is one. Loads nothing and does not start the driver. */
void device_choose(const char *wanted, struct device_arg *out);

#endif
