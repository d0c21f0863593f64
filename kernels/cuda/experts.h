/* SPDX-License-Identifier: Apache-2.0 */
/* Declares the CUDA operations of mixtures of experts, which ops.c collects. */
#ifndef CUDA_EXPERTS_H
#define CUDA_EXPERTS_H

#include <kernels/experts.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DECLARE(name, type) kern_##type##_fn cuda_##type;
KERN_EXPERT_OPS(DECLARE)
#undef DECLARE

extern const struct kern_expert_ops cuda_expert_ops;

#ifdef __cplusplus
}
#endif
#endif
