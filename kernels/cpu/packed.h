/* SPDX-License-Identifier: Apache-2.0 */
/* Products through panels.h: packs the operands and distributes the tiles. */
#ifndef CPU_PACKED_H
#define CPU_PACKED_H

#include "cpu/product.h"

/* Returns false, having done nothing, if panels.h cannot compute the product: no such kernels on this processor, mixed
 * types, masks, adapters on some rows only. */
bool cpu_packed_product(struct kern_stream *stream, const struct cpu_product *product);

#endif
