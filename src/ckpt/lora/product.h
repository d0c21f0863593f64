/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of a merge: values + scale * L * R in float32, one tile at a time. Knows no tensors and no files. */
#ifndef CKPT_LORA_PRODUCT_H
#define CKPT_LORA_PRODUCT_H

#include <stdint.h>

enum { FSDPCK_TILE_ROWS = 16, FSDPCK_TILE_COLS = 256 };

/* values[i * ld + j] += scale * sum over k of left[i * rank + k] * right[k * ncol + j], for i < nrows, j < ncols (at
 * most a tile). left begins at the tile's first row, right at its first column. The sum over k is in float32, k
 * ascending. */
void fsdpck_product_add(float *values, uint64_t ld, const float *left, const float *right, uint64_t rank, uint64_t ncol,
                        uint64_t nrows, uint64_t ncols, float scale);

#endif
