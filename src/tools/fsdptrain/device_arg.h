/* SPDX-License-Identifier: Apache-2.0 */
/* --device: where a run computes, and which module has it. */
#ifndef TOOLS_DEVICE_ARG_H
#define TOOLS_DEVICE_ARG_H

#include <limits.h>

struct device_arg {
    const char *name;   /* "cpu" or "cuda" */
    const char *module; /* path, or NULL: none, or not needed */
    char path[PATH_MAX];
};

/* wanted: what the option says, or NULL: a GPU where there is one. Loads nothing and starts no driver. */
void device_choose(const char *wanted, struct device_arg *out);

#endif
