/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of reading .pt files: one rank's shards, and what ranks hold alike. */
#ifndef CKPT_PT_SHARD_H
#define CKPT_PT_SHARD_H

#include "torch/pt/reading.h"
#include "torch/pickle/tensor_node.h"

/* A DTensor: the boxes that mesh, placements and the file's rank give, out of its local tensor. */
int fsdpck_pt_add_shard(struct fsdpck_pt_reading *r, const char *name, const struct fsdpck_key *path, uint32_t npath,
                        fsdpck_node n);
/* Whether a rank before this one saved other bytes for tensor `ordinal`, as far as the zips' CRC-32s tell. Said once a
 * tensor. */
bool fsdpck_pt_differs(struct fsdpck_pt_reading *r, uint32_t ordinal, const struct fsdpck_zip_record *record);

#endif
