/* SPDX-License-Identifier: Apache-2.0 */
/* Places tensors on the dimensions "tp" and "ep" of a mesh by the table of the model's family. */
#ifndef CKPT_CONVERT_FAMILY_H
#define CKPT_CONVERT_FAMILY_H

#include <fsdpck/convert.h>

#include "view/family.h"

struct fsdpck_by_family {
    struct fsdpck_family family;
    const struct fsdpck_mesh *mesh;
    uint32_t tp, ep;               /* dimensions of the mesh; its ndim: it has none */
    uint32_t ntp, nep;             /* their sizes, 1 if there are none */
    size_t nknown, nunknown;       /* tensors of layers that the table has, and has not */
    const char *unknown, *kv_name; /* the first of those; the first of k and v, if they stay whole */
};

/* Reads the family of the source. Refuses a mesh without such a dimension, and heads that tp would cut. */
int fsdpck_by_family_begin(const struct fsdpck_source *src, const struct fsdpck_convert_request *req,
                           struct fsdpck_by_family *out, struct fsdpck_error *err);
/* Fills the rule for one tensor: its placements on tp and ep. Sets only_dim and only_at of the place if it is of a
 * single expert. */
int fsdpck_by_family_rule(struct fsdpck_by_family *b, const struct fsdpck_tensor *t, struct fsdpck_placement_rule *rule,
                          struct fsdpck_convert_place *place, struct fsdpck_error *err);
/* After all tensors: refuses a source of which the table has no tensor, and gives notes of what stays whole. */
int fsdpck_by_family_end(const struct fsdpck_by_family *b, const struct fsdpck_source *src,
                         const struct fsdpck_options *opt, struct fsdpck_error *err);

/* Places one tensor. by_family: NULL if the request does not ask for it. */
int fsdpck_place(const struct fsdpck_convert_request *req, struct fsdpck_by_family *by_family,
                 const struct fsdpck_tensor *tensor, struct fsdpck_convert_place *out, struct fsdpck_error *err);

#endif
