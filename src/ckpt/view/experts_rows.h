/* SPDX-License-Identifier: Apache-2.0 */
/* Fused experts as matrices: a layout view. */
#ifndef CKPT_EXPERTS_ROWS_H
#define CKPT_EXPERTS_ROWS_H

#include "engine/source_impl.h"

/* Lists experts [experts, inputs, outputs] of gpt-oss and Llama-4 as [experts * outputs, inputs], under their names.
 * Another source does not change. After a failure the source can only be closed. */
int fsdpck_experts_rows(struct fsdpck_source *src, struct fsdpck_error *err);

#endif
