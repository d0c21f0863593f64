/* SPDX-License-Identifier: Apache-2.0 */
/* Shards whose chunks turned out smaller than the room that was laid out for them. */
#ifndef CKPT_SHARD_COMPACT_H
#define CKPT_SHARD_COMPACT_H

#include "format/shard.h"

/* Payloads, items and records of a compressed shard move together, to the places that the finished file has; the layout
 * follows, and the file is cut to its new size. Before fsdpck_shard_finish() writes the rest. */
int fsdpck_shard_compact(struct fsdpck_shard *s, struct fsdpck_out_files *out, uint32_t file, struct fsdpck_error *err);

#endif
