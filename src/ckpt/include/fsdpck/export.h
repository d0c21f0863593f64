/* SPDX-License-Identifier: Apache-2.0 */
/* Exports any source to Hugging Face safetensors: a folder with index and assets, or one file. */
#ifndef FSDPCK_EXPORT_H
#define FSDPCK_EXPORT_H

#include <fsdpck/convert.h>

#ifdef __cplusplus
extern "C" {
#endif

struct fsdpck_export_request {
    const char *out;           /* folder; or one file if it ends in ".safetensors" */
    uint64_t max_shard_nbytes; /* payload of one file of a folder; 0: 5 GB. A tensor is never split */
    struct fsdpck_select
        select; /* tree NULL: the only tree, or "model" if there are several; otherwise an error lists the trees */
    const char *assets; /* as in fsdpck_convert_request */
    bool force;
    uint32_t vllm_ranks;       /* not 0: the folder is vLLM's sharded_state for tensor parallelism over so many ranks */
    bool vllm_expert_parallel; /* each of them has some of the experts whole, not a part of each */
    const char *metadata_key, *metadata_value; /* UTF-8: an entry of __metadata__ in each file, beside "format"; or
                                                  NULL, both */
};

/* Writes the selected tensors and the assets, with buffers of at most opt->memory_nbytes. A failure leaves `out` as it
 * was before the call. result may be NULL. */
FSDPCK_API int fsdpck_export(struct fsdpck_source *src, const struct fsdpck_export_request *req,
                             const struct fsdpck_options *opt, struct fsdpck_transfer_result *result,
                             struct fsdpck_error *err);

#ifdef __cplusplus
}
#endif
#endif
