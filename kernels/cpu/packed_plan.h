/* SPDX-License-Identifier: Apache-2.0 */
/* The plans among which a product may choose, and the choice. The fastest plan depends on the processor's caches and
 * load units, so the first calls of each shape try the plans in turn and measure them. The bits are the same under
 * every plan. */
#ifndef CPU_PACKED_PLAN_H
#define CPU_PACKED_PLAN_H

#include "cpu/packed_run.h"

enum { CPU_PACKED_PLANS = 6 };

/* Writes the plans for a product on nthreads threads; the one that is probably best comes first. Returns their number,
 * at least 1. */
int cpu_packed_plans(const struct cpu_packed *w, unsigned nthreads, struct cpu_packed_plan plans[CPU_PACKED_PLANS]);

/* The measurements of one stream, and the plans chosen from them. */
struct cpu_packed_choices;

/* Returns NULL if out of memory. */
struct cpu_packed_choices *cpu_packed_choices_new(void);
void cpu_packed_choices_free(struct cpu_packed_choices *choices);

/* Runs a product by the plan that was fastest for its shape, or by one that is still to be measured. */
void cpu_packed_choose(struct cpu_packed_choices *choices, const struct cpu_packed *w);

#endif
