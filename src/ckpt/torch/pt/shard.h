/* SPDX-License-Identifier: Apache-2.0 */
/* Internals of reading .pt files: one rank's shards, and tensors that every rank saves whole. */
#ifndef CKPT_PT_SHARD_H
#define CKPT_PT_SHARD_H

#include "torch/pt/reading.h"
#include "torch/pickle/tensor_node.h"

/* Adds a DTensor: mesh, placements and the file's rank determine the boxes of its local tensor. */
int fsdpck_pt_add_shard(struct fsdpck_pt_reading *r, const char *name, const struct fsdpck_key *path, uint32_t npath,
                        fsdpck_node n);
/* Returns whether an earlier rank saved other bytes for tensor `ordinal`, judged by the zips' CRC-32s. Reports it once
 * per tensor. */
bool fsdpck_pt_differs(struct fsdpck_pt_reading *r, uint32_t ordinal, const struct fsdpck_zip_record *record);

#endif
