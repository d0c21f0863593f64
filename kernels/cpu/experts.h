/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU's operations of mixtures of experts. */
#ifndef CPU_EXPERTS_H
#define CPU_EXPERTS_H

#include <kernels/experts.h>

extern const struct kern_expert_ops cpu_expert_ops;

#endif
