/* SPDX-License-Identifier: Apache-2.0 */
/* auto_wrap_policy of fsdp and of the objects of fsdp.policy: which blocks are gathered together. A unit is one block,
 * several consecutive ones, or one group of a block that is cut; the embedding is a unit, and so are the last norm and
 * the head. Only gathers know units: they decide memory and the size of messages, and no result. */
#ifndef TRAIN_WRAP_H
#define TRAIN_WRAP_H

#include "model/policy.h"

struct wrap {
    uint32_t nunits;
    uint32_t *unit;              /* (layout.ngroups) unit of each group of the layout, ascending */
    struct group_policy *policy; /* (layout.ngroups) that of the groups of a unit is the same */
};

int wrap_make(const struct train_config *config, const struct layout *l, struct wrap *out, struct fsdpck_error *err);
void wrap_free(struct wrap *w);
/* Refuses a name in fsdp.transformer_layer_cls_to_wrap that is not the class of the model's blocks. */
int wrap_check(const struct train_config *config, const struct model *m, struct fsdpck_error *err);

#endif
