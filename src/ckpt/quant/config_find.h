/* SPDX-License-Identifier: Apache-2.0 */
/* Finds and reads the quantization_config of a source. */
#ifndef CKPT_QUANT_CONFIG_FIND_H
#define CKPT_QUANT_CONFIG_FIND_H

#include "engine/source_impl.h"
#include "quant/config.h"

/* What the source's own files say counts; `folder` (NULL: none) is looked into only if they say nothing, because it may
 * be that of a model which is not quantized. */
int fsdpck_quant_config_find(const struct fsdpck_source *src, const char *folder, struct fsdpck_quant_config *out,
                             struct fsdpck_error *err);

#endif
