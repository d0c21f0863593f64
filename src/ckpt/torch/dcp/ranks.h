/* SPDX-License-Identifier: Apache-2.0 */
/* Rank-local DCP saves: one __R.metadata a rank, no .metadata. Each knows its own chunks only; together they are a
 * checkpoint. */
#ifndef CKPT_DCP_RANKS_H
#define CKPT_DCP_RANKS_H

#include "torch/dcp/reading.h"

/* Reads the metadata of all ranks in `folder` (below the source's; "" for that itself) into the source. A missing or
 * doubled rank is named. */
int fsdpck_dcp_read_ranks(struct fsdpck_source *src, struct dcp *dcp, const char *folder, struct fsdpck_error *err);
/* One rank's share of a tensor: other ranks' metadata has the rest. */
int fsdpck_dcp_rank_tensor(struct dcp_reading *r, const char *name, const struct fsdpck_key *path, uint32_t npath,
                           enum fsdpck_dtype dtype, uint32_t ndim, const uint64_t *shape,
                           const struct dcp_tensor *found);
/* Whether an item of this name was listed by a rank before: that one is taken, and where the two differ that is noted.
 */
bool fsdpck_dcp_rank_item(const struct dcp_reading *r, const char *name, const struct dcp_item_location *location);

#endif
