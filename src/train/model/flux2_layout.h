/* SPDX-License-Identifier: Apache-2.0 */
/* FLUX.2's part of the layout tables. */
#ifndef TRAIN_FLUX2_LAYOUT_H
#define TRAIN_FLUX2_LAYOUT_H

#include "model/layout_build.h"

/* Adds all parameters, in the order of their groups. */
void flux2_add(struct layout_builder *b);
/* As layout_each(). */
void flux2_each(const struct layout *l, layout_fn *fn, void *ctx);
/* The number of a norm's weight in a block. */
int32_t flux2_norm(const struct layout *l, uint32_t block);
void flux2_free(struct layout *l);

#endif
