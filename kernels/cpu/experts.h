/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU's operations of mixtures of experts. */
#ifndef CPU_EXPERTS_H
#define CPU_EXPERTS_H

#include <kernels/experts.h>

extern const struct kern_expert_ops cpu_expert_ops;

kern_expert_act_fn cpu_expert_act;
kern_expert_act_grad_fn cpu_expert_act_grad;
kern_expert_bias_fn cpu_expert_bias;
kern_expert_bias_grad_fn cpu_expert_bias_grad;

/* The choice that a row belongs to; -1: padding. */
static inline int64_t cpu_choice_of(const int32_t *choices, int64_t row)
{
    return choices ? choices[row] : row;
}

#endif
