/* SPDX-License-Identifier: Apache-2.0 */
/* What the tensors of a base are called in a source that was made from it: the same, or with a prefix more or less. */
#ifndef CKPT_COMPLETE_NAMES_H
#define CKPT_COMPLETE_NAMES_H

#include "engine/source_impl.h"

enum { FSDPCK_COMPLETE_NAME_NBYTES = 1024 };

struct fsdpck_complete_names {
    bool in_tree;                              /* the source's weights are in a tree "model" */
    char added[FSDPCK_COMPLETE_NAME_NBYTES];   /* that the source's names have before the base's, as "module." */
    char removed[FSDPCK_COMPLETE_NAME_NBYTES]; /* that only the base's have */
};

/* Finds how the names correspond. Refuses a base that is another model: fewer than half of the source's weights are
 * there, or one has another shape; and one that holds its weights in another form. */
int fsdpck_complete_match(const struct fsdpck_source *src, const struct fsdpck_source *base,
                          struct fsdpck_complete_names *out, struct fsdpck_error *err);
/* Writes the source's name of a weight of the base. */
int fsdpck_complete_name(const struct fsdpck_complete_names *names, const char *in_base,
                         char out[FSDPCK_COMPLETE_NAME_NBYTES], struct fsdpck_error *err);
/* Sets the path of such a name; returns its length: 0 for a flat name. */
uint32_t fsdpck_complete_path(const struct fsdpck_complete_names *names, const char *name, struct fsdpck_key path[2]);

#endif
