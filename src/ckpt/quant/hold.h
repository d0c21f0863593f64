/* SPDX-License-Identifier: Apache-2.0 */
/* The words for how a trainer holds a frozen base (fsdpck/packed.h). */
#ifndef CKPT_HOLD_H
#define CKPT_HOLD_H

#include <stdbool.h>

/* Two of them; the others are names of forms (quant/targets.h). */
#define FSDPCK_HOLD_AS_STORED   "as stored"
#define FSDPCK_HOLD_DEQUANTIZED "bf16"

bool fsdpck_hold_is_known(const char *how);

#endif
