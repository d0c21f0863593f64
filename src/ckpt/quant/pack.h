/* SPDX-License-Identifier: Apache-2.0 */
/* Quantized weights as rows that hold their own scales (fsdpck/packed.h). */
#ifndef CKPT_QUANT_PACK_H
#define CKPT_QUANT_PACK_H

#include <fsdpck/packed.h>

#include "engine/value_view.h"
#include "quant/inputs.h"

/* Returns false if the weight's form is not one that rows can hold. Sets everything but the values of codes that a
 * tensor of the source lists. */
bool fsdpck_quant_packed(const struct fsdpck_source *src, const struct fsdpck_quant_weight *w,
                         struct fsdpck_packed *out);
/* Computes a box of the UINT8 matrix [rows, row_nbytes]. */
int fsdpck_quant_pack(struct fsdpck_quant_inputs *in, struct fsdpck_fetch *f, const struct fsdpck_quant_weight *w,
                      const struct fsdpck_packed *packed, const struct fsdpck_matrix_box *box, void *dst,
                      uint64_t stride, struct fsdpck_error *err);
#endif
