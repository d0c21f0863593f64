/* SPDX-License-Identifier: Apache-2.0 */
/* The shim as a device: runs the CUDA kernels on fibers, in host memory. For tests. */
#ifndef CUDA_SHIM_DEVICE_H
#define CUDA_SHIM_DEVICE_H

#include <kernels/stream.h>

#ifdef __cplusplus
extern "C" {
#endif

const struct kern_device *cuda_shim_device(void);
/* Sets the order in which threads of a block run: 0 ascending, 1 descending, else random, seeded by the number. Odd
 * seeds complete asynchronous copies and products at once; even ones as late as allowed. */
void cuda_shim_order(uint64_t seed);

#ifdef __cplusplus
}
#endif
#endif
