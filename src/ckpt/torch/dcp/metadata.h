/* SPDX-License-Identifier: Apache-2.0 */
/* Writes PyTorch's .metadata (torch.distributed.checkpoint.metadata.Metadata) as pickle protocol 2 that torch 2.4 and
 * newer load. The writer streams: the caller walks its own tables twice, first for tensors, then for storage. */
#ifndef CKPT_DCP_METADATA_H
#define CKPT_DCP_METADATA_H

#include "base/json_write.h"
#include "base/names.h"

/* Zero-initialise, then begin. All strings passed to it must live until free. After an allocation failure every call
 * does nothing; fsdpck_text_check(&w->text, err) reports it. */
struct fsdpck_dcp_writer {
    struct fsdpck_text text;     /* the file's bytes; the caller may take over text.data (and set it to NULL) */
    struct fsdpck_names strings; /* names, keys and files -> memo number: each is written once */
    uint64_t known;              /* fixed texts and names already in the memo */
};

/* Order of calls: begin; for each name, one tensor+chunks+tensor_end or one item; paths_begin; one path for each name;
 * storage_begin; one storage for each chunk or item (aliases too: their own name, the same location); end; free. */
void fsdpck_dcp_begin(struct fsdpck_dcp_writer *w);
void fsdpck_dcp_tensor(struct fsdpck_dcp_writer *w, const char *name, enum fsdpck_dtype dtype, uint32_t ndim,
                       const uint64_t *shape);
void fsdpck_dcp_chunk(struct fsdpck_dcp_writer *w, uint32_t ndim, const uint64_t *offset, const uint64_t *size);
void fsdpck_dcp_tensor_end(struct fsdpck_dcp_writer *w);
void fsdpck_dcp_item(struct fsdpck_dcp_writer *w, const char *name);
void fsdpck_dcp_paths_begin(struct fsdpck_dcp_writer *w);
/* npath 0: the name is the only key. */
void fsdpck_dcp_path(struct fsdpck_dcp_writer *w, const char *name, const struct fsdpck_key *path, uint32_t npath);
void fsdpck_dcp_storage_begin(struct fsdpck_dcp_writer *w);
/* offset NULL: a non-tensor item. index: number of the chunk within its tensor. */
void fsdpck_dcp_storage(struct fsdpck_dcp_writer *w, const char *name, uint32_t ndim, const uint64_t *offset,
                        uint64_t index, const char *file, uint64_t item_offset, uint64_t item_nbytes);
void fsdpck_dcp_end(struct fsdpck_dcp_writer *w);
void fsdpck_dcp_free(struct fsdpck_dcp_writer *w);

#endif
