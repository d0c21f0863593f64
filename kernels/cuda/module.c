/* SPDX-License-Identifier: Apache-2.0 */
/* The module's exported symbol: counts the devices, and checks that the kernels run on them. */
#include <kernels/module.h>

#include "cuda/device.h"

#include <cuda_runtime_api.h>
#include <kernels/ops.h>
#include <stdio.h>
#include <string.h>

/* Oldest compute capability that the kernels are compiled for. */
enum { MIN_MAJOR = 8 };

static int count(int *ndevices, char *message)
{
    int driver = 0, runtime = 0, n = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    cudaError_t code = cudaGetDeviceCount(&n);
    if (driver == 0) {
        snprintf(message, KERN_MESSAGE_BYTES, "there is no NVIDIA driver on this machine");
    } else if (code == cudaErrorInsufficientDriver) {
        snprintf(message, KERN_MESSAGE_BYTES, "the NVIDIA driver is for CUDA %d.%d, and CUDA %d.%d is needed",
                 driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    } else if (code == cudaErrorNoDevice || (code == cudaSuccess && n == 0)) {
        snprintf(message, KERN_MESSAGE_BYTES, "the driver finds no NVIDIA GPU");
    } else if (code != cudaSuccess) {
        snprintf(message, KERN_MESSAGE_BYTES, "the driver does not start: %s", cudaGetErrorString(code));
    } else {
        *ndevices = n;
        return KERN_OK;
    }
    return KERN_ERR_DEVICE;
}

static int describe(int index, struct kern_device_facts *out, char *message)
{
    struct cudaDeviceProp p;
    size_t nfree = 0, total = 0;
    cudaError_t code = cudaGetDeviceProperties(&p, index);
    if (code == cudaSuccess && p.major < MIN_MAJOR) {
        snprintf(message, KERN_MESSAGE_BYTES, "device %d (%.100s) is of compute capability %d.%d, and %d.0 is needed",
                 index, p.name, p.major, p.minor, MIN_MAJOR);
        return KERN_ERR_DEVICE;
    }
    if (code == cudaSuccess)
        code = (cudaError_t)cuda_use(index);
    if (code == cudaSuccess)
        code = cudaMemGetInfo(&nfree, &total);
    if (code != cudaSuccess) {
        snprintf(message, KERN_MESSAGE_BYTES, "device %d does not start: %s", index, cudaGetErrorString(code));
        return KERN_ERR_DEVICE;
    }
    snprintf(out->name, sizeof(out->name), "%.100s, sm_%d%d", p.name, p.major, p.minor);
    _Static_assert(sizeof(out->id) == sizeof(p.uuid), "an id is the device's UUID");
    memcpy(out->id, &p.uuid, sizeof(out->id));
    out->total_nbytes = total;
    out->free_nbytes = nfree;
    return KERN_OK;
}

__attribute__((visibility("default"))) const struct kern_module kern_module = {
    .build = KERN_BUILD,
    .ops_nbytes = sizeof(struct kern_ops),
    .device_nbytes = sizeof(struct kern_device),
    .module_nbytes = sizeof(struct kern_module),
    .device = &cuda_device,
    .links = &cuda_links,
    .count = count,
    .describe = describe,
};
