/* SPDX-License-Identifier: Apache-2.0 */
/* Compacts shards whose chunks are smaller than their reserved space. */
#ifndef CKPT_SHARD_COMPACT_H
#define CKPT_SHARD_COMPACT_H

#include "format/shard.h"

/* Moves payloads, items and records of a compressed shard to their final offsets, updates the layout, and truncates the
 * file to its new size. Call it before fsdpck_shard_finish() writes the rest. */
int fsdpck_shard_compact(struct fsdpck_shard *s, struct fsdpck_out_files *out, uint32_t file, struct fsdpck_error *err);

#endif
