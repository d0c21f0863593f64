/* SPDX-License-Identifier: Apache-2.0 */
/* The values of a weight that is quantized: read in tiles, and widened to float32 in parts that a cache holds. */
#ifndef CKPT_QUANT_ENCODE_PARTS_H
#define CKPT_QUANT_ENCODE_PARTS_H

#include "quant/encode.h"

#define FSDPCK_QUANT_PART_NELEM (1u << 16)

/* The part's values are in e->in, dense. amax: the largest of them. */
typedef int fsdpck_quant_part_fn(struct fsdpck_quant_encoder *e, const struct fsdpck_quant_piece *part, float amax,
                                 void *ctx, struct fsdpck_error *err);

/* Reads a tile of e->target, and visits its parts, which are whole blocks where the tile is. NaN and infinity are
 * refused. If f->dry, counts and visits nothing. */
int fsdpck_quant_each_part(struct fsdpck_quant_encoder *e, struct fsdpck_fetch *f,
                           const struct fsdpck_quant_piece *tile, fsdpck_quant_part_fn *visit, void *ctx,
                           struct fsdpck_error *err);

#endif
