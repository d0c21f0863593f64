/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU's kernels: what ops.c puts into the table. */
#ifndef CPU_OPS_H
#define CPU_OPS_H

#include <kernels/ops.h>

#define DECLARE(name, type) kern_##type##_fn cpu_##name;
KERN_OPS(DECLARE)
#undef DECLARE

#endif
