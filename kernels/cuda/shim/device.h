/* SPDX-License-Identifier: Apache-2.0 */
/* The shim as a device: the CUDA row's kernels on fibers, over the CPU's memory. For tests. */
#ifndef CUDA_SHIM_DEVICE_H
#define CUDA_SHIM_DEVICE_H

#include <kernels/stream.h>

#ifdef __cplusplus
extern "C" {
#endif

const struct kern_device *cuda_shim_device(void);
/* The order in which threads of a block run from now on: 0 ascending, 1 descending, else random, another for each
 * number. Odd: copies that may happen early do. */
void cuda_shim_order(uint64_t seed);

#ifdef __cplusplus
}
#endif
#endif
