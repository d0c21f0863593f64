/* SPDX-License-Identifier: Apache-2.0 */
/* Presents matrices whose elements lie at regular steps in larger tensors of a source: the factors of single experts,
 * which some adapters interleave. The columns of those are single elements, so a whole tensor is read once, and kept
 * while its matrices are asked for; matrices that lie row after row are read alone. Knows nothing of adapters. */
#ifndef CKPT_LORA_SLICES_VIEW_H
#define CKPT_LORA_SLICES_VIEW_H

#include "engine/source_impl.h"

/* Element (i, j) is element first + i * row_step + j * col_step of the inner tensor. */
struct fsdpck_lora_slice {
    const char *name;
    const struct fsdpck_key *path; /* (npath) */
    uint32_t npath;
    size_t inner;
    uint64_t rows, cols, first, row_step, col_step;
};

/* Turns src into a view of all tensors but those that `hidden` (one for each) marks, and of the slices. slices: (n)
 * malloc'ed; the call takes them over, also when it fails. Their names and paths must live as long as src. After a
 * failure src can only be closed. */
int fsdpck_lora_slices_present(struct fsdpck_source *src, const bool *hidden, struct fsdpck_lora_slice *slices,
                               size_t n, struct fsdpck_error *err);

#endif
