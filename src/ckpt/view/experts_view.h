/* SPDX-License-Identifier: Apache-2.0 */
/* Presents the routed experts of a model one by one or fused: a layout view. */
#ifndef CKPT_EXPERTS_VIEW_H
#define CKPT_EXPERTS_VIEW_H

#include "base/vec.h"
#include "view/experts.h"
#include "view/layout.h"

/* A tensor of the source that holds routed experts. */
struct fsdpck_found_expert {
    struct fsdpck_expert x;
    size_t ordinal, stored; /* stored: of the tensor with the bytes, if this is a second name */
};

struct fsdpck_found_experts {
    struct fsdpck_vec list; /* struct fsdpck_found_expert: by layer, down last, by expert, gate before up */
    bool fused;             /* all are FUSED, else all are SINGLE */
};

/* Finds the experts of a source, and refuses, by name: both forms in one source, forms that are not known, experts that
 * are missing or have other shapes than config.json says. The caller frees the list, on failure too. */
int fsdpck_experts_find(const struct fsdpck_source *src, const struct fsdpck_moe *moe, struct fsdpck_found_experts *out,
                        struct fsdpck_error *err);
/* Refuses, by name, experts of an alike family that are single tensors or have other shapes than config.json says.
 * *held: of a family that publishes them turned, they have transformers' order; else false. */
int fsdpck_experts_check_alike(const struct fsdpck_source *src, const struct fsdpck_moe *moe, bool *held,
                               struct fsdpck_error *err);
/* Turns the experts of such a family: to the published order, or to transformers'. The source is checked. */
int fsdpck_experts_turn(struct fsdpck_source *src, const struct fsdpck_moe *moe, bool published,
                        struct fsdpck_error *err);
/* Makes src present its experts fused, or one by one. names: as the user gave it. */
int fsdpck_experts_set_names(struct fsdpck_source *src, const struct fsdpck_moe *moe, bool fused, const char *names,
                             struct fsdpck_error *err);

#endif
