/* SPDX-License-Identifier: Apache-2.0 */
/* Declares the CPU operations that ops.c collects. */
#ifndef CPU_OPS_H
#define CPU_OPS_H

#include <kernels/ops.h>

#define DECLARE(name, type) kern_##type##_fn cpu_##name;
KERN_OPS(DECLARE)
#undef DECLARE

#endif
