/* Inside of reading .pt files: one rank's shards, and what ranks hold alike. */
#ifndef CKPT_PT_SHARD_H
#define CKPT_PT_SHARD_H

#include "torch/pt_file.h"
#include "torch/tensor_node.h"

/* Fills err with file and tensor (name may be NULL) and returns the code. */
int fsdpck_pt_fail(struct fsdpck_pt_reading *r, int code, const char *name, const char *what);
/* Where a tensor lies in the file being read; out->strides points into t. */
int fsdpck_pt_place(struct fsdpck_pt_reading *r, const char *name, const struct fsdpck_tensor_node *t, struct fsdpck_piece *out,
                    const struct fsdpck_zip_record **record);
uint32_t fsdpck_pt_part(const struct fsdpck_pt_reading *r); /* what the catalogue tells files of one set apart by */

/* A DTensor: the boxes that mesh, placements and the file's rank give, out of its local tensor. */
int fsdpck_pt_add_shard(struct fsdpck_pt_reading *r, const char *name, const struct fsdpck_key *path, uint32_t npath, fsdpck_node n);
/* Whether a rank before this one saved other bytes for tensor `ordinal`, as far as the zips' CRC-32s tell. Said once a tensor. */
bool fsdpck_pt_differs(struct fsdpck_pt_reading *r, uint32_t ordinal, const struct fsdpck_zip_record *record);

#endif
