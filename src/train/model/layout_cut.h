/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts blocks into groups: by fsdp.auto_wrap_policy, and where an object of fsdp.policy matches modules in a block. */
#ifndef TRAIN_LAYOUT_CUT_H
#define TRAIN_LAYOUT_CUT_H

#include "model/layout.h"

/* Sets the blocks of a layout that has no parameters yet, and its number of groups. After a failure layout_free()
 * releases them. */
int layout_cut(const struct model *m, const struct train_config *config, struct layout *l, struct fsdpck_error *err);

#endif
