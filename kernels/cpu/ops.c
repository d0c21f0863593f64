/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU's table of operations. */
#include "cpu/ops.h"

#include "cpu/stream.h"

#define ROW(name, type) .name = cpu_##name,
const struct kern_ops cpu_ops = { KERN_OPS(ROW) };
