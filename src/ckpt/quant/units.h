/* SPDX-License-Identifier: Apache-2.0 */
/* Says which elements of stored codes belong together: those of a block that shares a scale. */
#ifndef CKPT_QUANT_UNITS_H
#define CKPT_QUANT_UNITS_H

#include "engine/source_impl.h"

/* Sets (*out)[ordinal] to the number of elements along each dimension that a part of the tensor must begin at a
 * multiple of, or to NULL if it may be cut anywhere. Blocks of codes with second names are those of the stored tensor.
 * If one quantized weight cannot be understood, no tensor has blocks, and *why says which and why. Everything lives in
 * the arena. */
int fsdpck_quant_units_find(struct fsdpck_source *src, struct fsdpck_arena *arena, const uint64_t ***out,
                            struct fsdpck_error *why, struct fsdpck_error *err);

#endif
