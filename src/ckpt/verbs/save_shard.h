/* SPDX-License-Identifier: Apache-2.0 */
/* One rank's part of a save: its shard file. */
#ifndef CKPT_SAVE_SHARD_H
#define CKPT_SAVE_SHARD_H

#include <fsdpck/save.h>

/* Lays out and writes file `path` with the boxes that this rank holds and owns; fsyncs it. */
int fsdpck_save_shard(const struct fsdpck_save_request *req, const struct fsdpck_options *opt, const char *path,
                      const uint8_t save_id[16], struct fsdpck_transfer_result *result, struct fsdpck_error *err);
/* Checks shapes, dtypes, meshes and aliases of a request, and that the boxes of this rank follow from its
 * placements. */
int fsdpck_save_check(const struct fsdpck_save_request *req, struct fsdpck_error *err);

#endif
