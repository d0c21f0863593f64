/* SPDX-License-Identifier: Apache-2.0 */
/* Quantizing a weight again as it is stored. */
#ifndef CKPT_QUANT_AGAIN_H
#define CKPT_QUANT_AGAIN_H

#include "quant/targets.h"
#include "quant/weights.h"

/* Sets *out to the form and the settings in which the weight is stored, so that its parts keep their shapes and dtypes.
 * Refuses forms that are only read. */
int fsdpck_quant_form_again(const struct fsdpck_source *src, const struct fsdpck_quant_weight *w,
                            const struct fsdpck_quant_config *config, struct fsdpck_quant_target_form *out,
                            struct fsdpck_error *err);
/* What a part holds; FSDPCK_OUT_PLAIN: values of the weight do not change it. */
enum fsdpck_quant_output fsdpck_quant_output_of(enum fsdpck_quant_part part);

#endif
