/* SPDX-License-Identifier: Apache-2.0 */
/* The layout of an export's safetensors files: the file and offset of each tensor, and the headers. Pure arithmetic and
 * text: no files. */
#ifndef CKPT_EXPORT_LAYOUT_H
#define CKPT_EXPORT_LAYOUT_H

#include <fsdpck/tensor.h>

#include "base/json_write.h"
#include "base/vec.h"

/* A box of the stored tensor. */
struct export_piece {
    const uint64_t *offset, *size; /* (ndim) */
};

struct export_tensor {
    const char *name;
    const void *data; /* its bytes, if no source has them */
    uint32_t chosen;  /* position in the selection of the stored tensor */
    enum fsdpck_dtype dtype;
    uint32_t ndim;
    const uint64_t *shape; /* (ndim) as in torch */
    uint64_t nbytes;
    const struct export_piece *pieces; /* (npieces) what it is made of, one after another; zeros follow. NULL: of all */
    size_t npieces;
    uint32_t rank; /* of those that have files of their own; in ascending order */
    size_t order;  /* original order */
    size_t file;
    uint64_t begin; /* offset in the file's data */
};

struct export_file {
    size_t first, count; /* its tensors */
    uint64_t data_nbytes;
    struct fsdpck_text header; /* everything before the data, padded: its length is the data's offset */
};

struct export_layout {
    struct fsdpck_vec tensors; /* struct export_tensor; sorted by file and offset after layout */
    struct export_file *files; /* (nfiles), at least one */
    size_t nfiles;
    uint64_t total_nbytes; /* of all tensors */
};

/* Distributes the tensors (all fields except file and begin filled in) as Hugging Face does: in order, with a new file
 * if the next tensor would not fit into max_shard_nbytes, or is of another rank; a larger tensor has a file alone. In a
 * file each tensor begins at a multiple of its element size: in order if that is possible, else wider elements first.
 * Data begins at a multiple of 4096 if it has at least 64 KiB, else of 8. metadata: JSON members that follow "format"
 * in __metadata__, with a leading comma; or NULL. */
int fsdpck_export_lay_out(struct export_layout *l, uint64_t max_shard_nbytes, const char *metadata,
                          struct fsdpck_error *err);
/* Writes model.safetensors.index.json; names[i] is the name of file i. */
int fsdpck_export_index(const struct export_layout *l, const char *const *names, struct fsdpck_text *out,
                        struct fsdpck_error *err);
void fsdpck_export_layout_free(struct export_layout *l);

#endif
