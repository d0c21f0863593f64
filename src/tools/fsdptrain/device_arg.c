/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the CUDA module: beside the program, as in a build folder, then in the library folder of an installation. */
#include "device_arg.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MODULE "libfsdptrain_cuda.so"

/* The driver creates it when it finds a device. Containers with access to some of the devices have it too. */
static const char device_file[] = "/dev/nvidiactl";

static bool is_there(const char *folder, const char *rest, char path[PATH_MAX])
{
    int n = snprintf(path, PATH_MAX, "%s%s/%s", folder, rest, MODULE);
    return n > 0 && n < PATH_MAX && access(path, R_OK) == 0;
}

static bool find_module(char path[PATH_MAX])
{
    char program[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    program[n > 0 ? n : 0] = 0;
    char *slash = strrchr(program, '/');
    if (slash)
        *slash = 0;
    return (slash && (is_there(program, "", path) || is_there(program, "/../lib", path))) || is_there(LIBDIR, "", path);
}

void device_choose(const char *wanted, struct device_arg *out)
{
    bool found = (!wanted || strcmp(wanted, "cuda") == 0) && find_module(out->path);
    bool automatic = !wanted && found && access(device_file, F_OK) == 0;
    out->name = wanted ? wanted : automatic ? "cuda" : "cpu";
    out->module = found && strcmp(out->name, "cuda") == 0 ? out->path : NULL;
}
