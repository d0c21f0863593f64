/* SPDX-License-Identifier: Apache-2.0 */
/* Several adapters on one base: joins their layouts, so that what is frozen is there once, and a group is gathered with
 * the adapters of all. */
#ifndef TRAIN_LAYOUT_JOIN_H
#define TRAIN_LAYOUT_JOIN_H

#include "model/layout.h"

/* all: (n) layouts of adapters on the same model at the same number of ranks, with the meshes of their groups; n > 0.
 * *out has the frozen parameters once and the trained ones of all. It gathers and holds them; of its layers it only
 * knows what is needed for that. Each of `all` keeps its parameters, which get their places in the memory of *out; its
 * trained ones are adjacent in optimizer memory. config: that of one of them; of its keys only those count that all
 * share. */
int layout_join(struct layout *const *all, size_t n, const struct train_config *config, struct layout *out,
                struct fsdpck_error *err);

#endif
