/* SPDX-License-Identifier: Apache-2.0 */
/* Declares the CUDA operations that ops.c collects. Plain C, so that ops.c and the tests need no CUDA header. */
#ifndef CUDA_OPS_H
#define CUDA_OPS_H

#include <kernels/ops.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DECLARE(name, type) kern_##type##_fn cuda_##name;
KERN_OPS(DECLARE)
#undef DECLARE

extern const struct kern_ops cuda_ops;

#ifdef __cplusplus
}
#endif
#endif
