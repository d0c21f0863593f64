/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA table of operations. */
#include "cuda/ops.h"

#define ROW(name, type) .name = cuda_##name,
const struct kern_ops cuda_ops = { KERN_OPS(ROW) };
