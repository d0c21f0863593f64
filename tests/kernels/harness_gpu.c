/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA backend as the device under test, with the kernels for warpgroups unless RIG_WARPGROUPS is false. It runs on
 * a GPU (without one it says so and exits 77) or on hosted libraries (../cuda). Memory is managed, so that tests can
 * read what kernels wrote, and launches are synchronous, so that they can read it at once. */
#include "harness.h"

#include "cuda/device.h"
#include "cuda/stream.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Runs before main, because cmocka cannot skip all tests with a reason. */
__attribute__((constructor)) static void start(void)
{
    int n = 0;
    setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
    if (cudaGetDeviceCount(&n) == cudaSuccess && n > 0)
        return;
    fputs("skipped: there is no NVIDIA GPU\n", stderr);
    _exit(77);
}

static int stream_new(int index, struct kern_pool *pool, struct kern_stream **out, char *message)
{
    int rc = cuda_device.stream_new(index, pool, out, message);
    if (rc == KERN_OK)
        (*out)->warpgroups &= RIG_WARPGROUPS;
    return rc;
}

const struct kern_device *rig_device(void)
{
    static struct kern_device device;
    device = cuda_device;
    device.stream_new = stream_new;
    return &device;
}

void *must_alloc(size_t nbytes)
{
    void *p = NULL;
    if (cudaMallocManaged(&p, nbytes + 1, cudaMemAttachGlobal) != cudaSuccess)
        fail_msg("no managed memory");
    return p;
}

void must_free(void *p)
{
    cudaFree(p);
}

void rig_run_all(rig_test test)
{
    struct kern_pool *pool = kern_pool_new(1); /* a stream without a pool has no scratch */
    assert_non_null(pool);
    for (int dtype = KERN_F32; dtype <= KERN_BF16; dtype++) {
        const uint64_t first = rig_run_once(test, pool, (enum kern_dtype)dtype, NULL, NULL);
        if (rig_run_once(test, pool, (enum kern_dtype)dtype, NULL, NULL) != first)
            fail_msg("dtype %d: other bits in the second run", dtype);
    }
    kern_pool_free(pool);
}
