/* SPDX-License-Identifier: Apache-2.0 */
/* Rank 0's part of a save: collects the chunk tables of all ranks into one index. */
#ifndef CKPT_SAVE_COMMIT_H
#define CKPT_SAVE_COMMIT_H

#include <fsdpck/save.h>

#include "commit/commit.h"

/* Every rank's shard file is in the staging directory, or is missing because that rank failed. Checks that each table
 * contains the requested tensors, then writes assets, .metadata and index.json. Does not commit. */
int fsdpck_save_gather(const struct fsdpck_save_request *req, const struct fsdpck_options *opt,
                       struct fsdpck_commit *commit, const uint8_t save_id[16], struct fsdpck_error *err);

#endif
