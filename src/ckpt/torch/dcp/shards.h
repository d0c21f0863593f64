/* SPDX-License-Identifier: Apache-2.0 */
/* PyTorch DCP in safetensors form (SerializationFormat.SAFETENSORS, HuggingFaceStorageWriter):
 * shard-RRRRR-model-….safetensors, no .metadata. */
#ifndef CKPT_DCP_SHARDS_H
#define CKPT_DCP_SHARDS_H

#include "torch/dcp/dcp.h"

/* Reads all of them in the source's folder. A rank that is missing between others is named. */
int fsdpck_dcp_read_shards(struct fsdpck_source *src, struct dcp *dcp, struct fsdpck_error *err);

#endif
