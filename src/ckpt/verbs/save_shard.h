/* SPDX-License-Identifier: Apache-2.0 */
/* One rank's part of a save: its shard file. */
#ifndef CKPT_SAVE_SHARD_H
#define CKPT_SAVE_SHARD_H

#include <fsdpck/save.h>

/* Where a save writes: on every rank. */
struct fsdpck_save_place {
    char *dir; /* the staging directory, or `out` in place; malloc'ed */
    bool in_place;
    uint8_t save_id[16];
};

/* Positions of the request's tensors and items in the lists of the whole save; NULL: 0, 1, 2 … */
struct fsdpck_save_ordinals {
    const uint32_t *tensors, *items;
};

/* Writes this rank's file with the boxes that it holds and owns, and its items; fsyncs it. The request was checked. */
int fsdpck_save_shard(const struct fsdpck_save_request *req, struct fsdpck_save_ordinals ordinals,
                      const struct fsdpck_save_place *place, const struct fsdpck_options *opt,
                      struct fsdpck_transfer_result *result, struct fsdpck_error *err);

#endif
