/* SPDX-License-Identifier: Apache-2.0 */
/* Rank-local DCP saves: one __R.metadata per rank, no .metadata. Each rank lists only its own chunks; together they are
 * a checkpoint. */
#ifndef CKPT_DCP_RANKS_H
#define CKPT_DCP_RANKS_H

#include "torch/dcp/reading.h"

/* Reads the metadata of all ranks in `folder` (relative to the source's folder; "" for that folder) into the source.
 * The error names a missing or duplicate rank. */
int fsdpck_dcp_read_ranks(struct fsdpck_source *src, struct dcp *dcp, const char *folder, struct fsdpck_error *err);
/* Adds one rank's part of a tensor; other ranks' metadata lists the rest. */
int fsdpck_dcp_rank_tensor(struct dcp_reading *r, const char *name, const struct fsdpck_key *path, uint32_t npath,
                           enum fsdpck_dtype dtype, uint32_t ndim, const uint64_t *shape,
                           const struct dcp_tensor *found);
/* Returns whether an earlier rank listed an item of this name. The earlier one is used; a difference is noted. */
bool fsdpck_dcp_rank_item(const struct dcp_reading *r, const char *name, const struct dcp_item_location *location);

#endif
