/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA backend on the shim as the device under test, with the kernels for warpgroups unless RIG_WARPGROUPS is
 * false. If another order of threads gives other bits, the kernel has a race. */
#include "harness.h"

#include "../support/sanitized.h"

#include "cuda/shim/device.h"
#include "cuda/stream.h"

enum { ORDERS = SANITIZED ? 1 : 3 };

static int stream_new(int index, struct kern_pool *pool, struct kern_stream **out, char *message)
{
    int rc = cuda_shim_device()->stream_new(index, pool, out, message);
    if (rc == KERN_OK)
        (*out)->warpgroups = RIG_WARPGROUPS;
    return rc;
}

const struct kern_device *rig_device(void)
{
    static struct kern_device device;
    device = *cuda_shim_device();
    device.stream_new = stream_new;
    return &device;
}

void rig_run_all(rig_test test)
{
    for (int dtype = KERN_F32; dtype <= KERN_BF16; dtype++) {
        uint64_t first = 0;
        for (uint64_t order = 0; order < ORDERS; order++) {
            cuda_shim_order(order);
            uint64_t hash = rig_run_once(test, NULL, (enum kern_dtype)dtype, NULL, NULL);
            if (order == 0)
                first = hash;
            else if (hash != first)
                fail_msg("dtype %d: other bits with threads in order %d than in order 0", dtype, (int)order);
        }
    }
}
