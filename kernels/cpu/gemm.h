/* SPDX-License-Identifier: Apache-2.0 */
/* The product behind kern_ops.gemm and LoRA: a kern_gemm whose A or B may be masked by dropout while it is read. */
#ifndef CPU_GEMM_H
#define CPU_GEMM_H

#include "cpu/product.h"

void cpu_product(struct kern_stream *stream, const struct cpu_product *product);

/* Rows and columns of a tile: at most `most` each, and at least least_n columns unless n is smaller. They depend on the
 * shape only. */
void cpu_gemm_grid(int64_t m, int64_t n, int64_t most, int64_t least_n, int64_t *tile_m, int64_t *tile_n);

#endif
