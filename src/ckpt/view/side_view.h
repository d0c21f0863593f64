/* SPDX-License-Identifier: Apache-2.0 */
/* Presents a model as another program holds it (view/side_table.h), or back in transformers' form: a layout view that
 * renames weights, joins them and cuts them apart. */
#ifndef CKPT_SIDE_VIEW_H
#define CKPT_SIDE_VIEW_H

#include "engine/source_impl.h"
#include "view/experts.h"
#include "view/side_table.h"

/* Whether layers of the source have the names of a side. */
bool fsdpck_source_is_side(const struct fsdpck_source *src, const struct fsdpck_side *side);
/* Makes src present the weights as the side has them, or (to false) as transformers does. config: the path of
 * config.json, which model was read from. Refuses families that are not known, weights that lack a part, and a source
 * with weights of both kinds. A source that is so already does not change. */
int fsdpck_source_set_side(struct fsdpck_source *src, const struct fsdpck_side *side, bool to,
                           const struct fsdpck_moe *model, const char *config, struct fsdpck_error *err);

#endif
