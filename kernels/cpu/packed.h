/* SPDX-License-Identifier: Apache-2.0 */
/* Products through panels.h, by the plan that is fastest on this processor. */
#ifndef CPU_PACKED_H
#define CPU_PACKED_H

#include "cpu/product.h"

struct cpu_packed;

/* Returns false, having done nothing, if panels.h cannot compute the product: no such kernels on this processor, mixed
 * types, masks, adapters on some rows only. */
bool cpu_packed_product(struct kern_stream *stream, const struct cpu_product *product);

/* The same, but only fills *w, which borrows product. */
bool cpu_packed_collect(struct kern_stream *stream, const struct cpu_product *product, struct cpu_packed *w);

#endif
