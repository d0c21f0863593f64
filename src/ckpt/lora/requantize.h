/* SPDX-License-Identifier: Apache-2.0 */
/* A quantized base with an adapter merged: weights that the adapter changes are quantized again in their own form, all
 * others stay as they are stored. */
#ifndef CKPT_LORA_REQUANTIZE_H
#define CKPT_LORA_REQUANTIZE_H

#include "engine/source_impl.h"

/* Presents the base with the values of `merged`, the same base dequantized to float32 and merged
 * (lora/merged_view.h), which the base owns from now on, also after a failure. The catalogue stays. A changed weight in
 * a form that cannot be written is refused; the base is then as before. */
int fsdpck_lora_requantize(struct fsdpck_source *base, struct fsdpck_source *merged, struct fsdpck_source *adapter,
                           struct fsdpck_error *err);
/* After the values were read: says how much of what the adapter adds is lost to rounding. */
void fsdpck_lora_requantize_note(const struct fsdpck_source *base, const struct fsdpck_options *opt);
/* Makes the base again what it was, and closes `merged`. */
void fsdpck_lora_requantize_end(struct fsdpck_source *base);

#endif
