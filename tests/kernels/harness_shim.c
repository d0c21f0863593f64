/* The CUDA row on the shim as the device under test. Other bits in another order of threads are a race. */
#include "harness.h"

#include "cuda/shim/device.h"

enum { ORDERS = 3 };

const struct kern_device *rig_device(void)
{
    return cuda_shim_device();
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
