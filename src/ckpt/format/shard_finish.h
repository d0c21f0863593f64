/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the bytes around the payloads of a shard file. */
#ifndef CKPT_SHARD_FINISH_H
#define CKPT_SHARD_FINISH_H

#include "format/shard.h"

/* When payloads and block hashes are in the file, writes envelopes, table and trailer as file `file` of `out`, and
 * fsyncs it. */
int fsdpck_shard_finish(struct fsdpck_shard *s, struct fsdpck_out_files *out, uint32_t file, const uint8_t save_id[16],
                        struct fsdpck_error *err);

#endif
