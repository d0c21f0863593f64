/* SPDX-License-Identifier: Apache-2.0 */
/* PyTorch DCP in safetensors form (SerializationFormat.SAFETENSORS, HuggingFaceStorageWriter):
 * shard-RRRRR-model-….safetensors, no .metadata. */
#ifndef CKPT_DCP_SHARDS_H
#define CKPT_DCP_SHARDS_H

#include "torch/dcp/dcp.h"

/* Reads all of these files in the source's folder. The error names a rank that is missing between others. */
int fsdpck_dcp_read_shards(struct fsdpck_source *src, struct dcp *dcp, struct fsdpck_error *err);

#endif
