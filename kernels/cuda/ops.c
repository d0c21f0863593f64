/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA tables of operations. */
#include "cuda/ops.h"

#include "cuda/experts.h"
#include "cuda/images.h"

#define ROW(name, type) .name = cuda_##name,
const struct kern_ops cuda_ops = { KERN_OPS(ROW) };
#undef ROW

#define ROW(name, type) .name = cuda_##type,
const struct kern_expert_ops cuda_expert_ops = { KERN_EXPERT_OPS(ROW) };
const struct kern_image_ops cuda_image_ops = { KERN_IMAGE_OPS(ROW) };
