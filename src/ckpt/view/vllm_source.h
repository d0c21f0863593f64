/* SPDX-License-Identifier: Apache-2.0 */
/* vLLM's sharded_state as a source: safetensors files of each rank of tensor parallelism. */
#ifndef CKPT_VLLM_SOURCE_H
#define CKPT_VLLM_SOURCE_H

#include "engine/source_impl.h"

/* Whether a name is that of a rank's file: model-rank-3-part-0.safetensors. rank may be NULL. */
bool fsdpck_vllm_is_file(const char *name, uint32_t *rank);
/* Opens a folder of such files, and presents the published model. */
int fsdpck_open_vllm(struct fsdpck_source *src, struct fsdpck_error *err);

#endif
