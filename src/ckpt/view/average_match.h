/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the tensors of several sources that belong together: same name, shape and dtype. */
#ifndef CKPT_AVERAGE_MATCH_H
#define CKPT_AVERAGE_MATCH_H

#include "base/arena.h"
#include "base/vec.h"
#include "view/average.h"

/* A tensor of the average. */
struct fsdpck_averaged {
    const char *name; /* in the caller's arena */
    size_t *ordinals; /* (n) of the tensor in each source, in the caller's arena; aliases are resolved */
    int64_t alias_of; /* position of the one whose second name this is in every source, or -1 */
};

/* Fills out (struct fsdpck_averaged) in the order of the first source, aliases after their targets. */
int fsdpck_average_match(const struct fsdpck_averaging *a, struct fsdpck_arena *arena, struct fsdpck_vec *out,
                         struct fsdpck_average_left *left, struct fsdpck_error *err);

/* Whether values of this type are summed. Others must be equal in all sources. */
bool fsdpck_average_sums(enum fsdpck_dtype d);

#endif
