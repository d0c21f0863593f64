/* SPDX-License-Identifier: Apache-2.0 */
/* The view that packs quantized weights, and dequantizes those that it cannot pack. */
#ifndef CKPT_PACK_VIEW_H
#define CKPT_PACK_VIEW_H

#include <fsdpck/source.h>

/* *changed false: no weight is quantized, and the source stays as it is. */
int fsdpck_source_pack(struct fsdpck_source *src, bool *changed, struct fsdpck_error *err);

#endif
