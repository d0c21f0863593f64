/* SPDX-License-Identifier: Apache-2.0 */
/* Products through panels.h: packs what has to be packed, and hands out the tiles. */
#ifndef CPU_PACKED_H
#define CPU_PACKED_H

#include "cpu/product.h"

/* False where the product is not one for panels.h: no such kernels here, mixed types, masks, adapters on some rows
 * only. Then nothing was done. */
bool cpu_packed_product(struct kern_stream *stream, const struct cpu_product *product);

#endif
