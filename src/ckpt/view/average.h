/* SPDX-License-Identifier: Apache-2.0 */
/* Weighted averages of several sources: a value view (engine/value_view.h) on all of them. */
#ifndef CKPT_AVERAGE_H
#define CKPT_AVERAGE_H

#include <fsdpck/select.h>

struct fsdpck_averaging {
    struct fsdpck_source *const *sources; /* (n) at least one */
    const double *weights;                /* (n) NULL: 1/n each */
    size_t n;
    /* Tree, include and exclude choose the tensors of every source (of a training checkpoint, the model); averages are
     * rounded to the dtype of a cast. */
    const struct fsdpck_select *select;
};

/* Makes the first source present the averages, under the first one's names without the tree. The other sources are read
 * through it and must outlive it. Refuses, by name, a tensor that not every source has in the same shape and dtype, and
 * quantized weights. *left: what the choice of a tree left behind in the first source. After a failure the first source
 * can only be closed. */
struct fsdpck_average_left {
    uint64_t ntensors, nitems;
};
int fsdpck_source_average(const struct fsdpck_averaging *a, struct fsdpck_average_left *left, struct fsdpck_error *err);

#endif
