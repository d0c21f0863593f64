/* SPDX-License-Identifier: Apache-2.0 */
/* Dequantizes boxes of logical weights: cuts them into boxes of stored codes that fit the memory, loads these, and
 * writes their values, transposed where the form is. */
#ifndef CKPT_QUANT_COMPUTE_H
#define CKPT_QUANT_COMPUTE_H

#include "quant/inputs.h"

/* box: of the logical weight as a matrix (engine/value_view.h). Elements of in->decode.to go to rows `stride` bytes
 * apart.
 */
int fsdpck_quant_compute(struct fsdpck_quant_inputs *in, struct fsdpck_fetch *f, const struct fsdpck_quant_weight *w,
                         const struct fsdpck_matrix_box *box, void *dst, uint64_t stride, struct fsdpck_error *err);

#endif
