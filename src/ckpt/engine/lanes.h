/* SPDX-License-Identifier: Apache-2.0 */
/* The order of a transfer: a lane is a range of one tensor, in row-major order, and the chunks that it fills. A lane is
 * processed in order, so each chunk needs one open hash state. Lanes are independent, so threads share them. Pure: no
 * I/O, no memory except its own. */
#ifndef CKPT_LANES_H
#define CKPT_LANES_H

#include "engine/transfer_plan.h"

struct fsdpck_lane {
    uint32_t tensor;     /* in the selection */
    uint64_t begin, end; /* elements of the tensor */
    size_t first, count; /* its chunks, in fsdpck_lanes.order */
    bool single;         /* one chunk, which is one run of the lane */
    bool whole_rows;     /* begins and ends at rows of dimension 0 */
    bool owns_content;   /* its rows count for the tensor's content (a repeated lane for more chunks does not count) */
};

struct fsdpck_lanes {
    struct fsdpck_lane *list;
    size_t count;
    uint32_t *order; /* chunk numbers */
};

/* max_chunks: maximum number of open chunks per lane (at least 1). */
int fsdpck_lanes_make(const struct fsdpck_transfer *t, size_t max_chunks, struct fsdpck_lanes *out,
                      struct fsdpck_error *err);
void fsdpck_lanes_free(struct fsdpck_lanes *l);

#endif
