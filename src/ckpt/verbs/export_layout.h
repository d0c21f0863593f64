/* SPDX-License-Identifier: Apache-2.0 */
/* The layout of an export's safetensors files: the file and offset of each tensor, and the headers. Pure arithmetic and
 * text: no files. */
#ifndef CKPT_EXPORT_LAYOUT_H
#define CKPT_EXPORT_LAYOUT_H

#include <fsdpck/tensor.h>

#include "base/json_write.h"
#include "base/vec.h"

struct export_tensor {
    const char *name;
    const void *made; /* its bytes, where no source has them */
    uint32_t chosen;  /* position in the selection of the tensor that is stored */
    enum fsdpck_dtype dtype;
    uint32_t ndim;
    const uint64_t *shape; /* (ndim) torch's */
    uint64_t nbytes;
    size_t order; /* as they came */
    size_t file;
    uint64_t begin; /* in the file's data */
};

struct export_file {
    size_t first, count; /* its tensors */
    uint64_t data_nbytes;
    struct fsdpck_text header; /* everything before the data, padded: its length is where the data begins */
};

struct export_layout {
    struct fsdpck_vec tensors; /* struct export_tensor; by file and place once laid out */
    struct export_file *files; /* (nfiles), at least one */
    size_t nfiles;
    uint64_t total_nbytes; /* of all tensors */
};

/* Distributes the tensors (all but file and begin filled in) as Hugging Face does: in order, a new file where the next
 * tensor would not fit into max_shard_nbytes, one that is larger alone in its file. In a file each begins at a multiple
 * of its element size: in order where that works out, else wider elements first. Data begins at a multiple of 4096
 * where there are 64 KiB of it, else of 8. metadata: JSON members that follow "format" in __metadata__, with a leading
 * comma; or NULL. */
int fsdpck_export_lay_out(struct export_layout *l, uint64_t max_shard_nbytes, const char *metadata,
                          struct fsdpck_error *err);
/* model.safetensors.index.json; names[i] is that of file i. */
int fsdpck_export_index(const struct export_layout *l, const char *const *names, struct fsdpck_text *out,
                        struct fsdpck_error *err);
void fsdpck_export_layout_free(struct export_layout *l);

#endif
