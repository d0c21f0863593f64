/* SPDX-License-Identifier: Apache-2.0 */
/* Presents tensors that are put together from blocks of matrices, with zeros between them. Knows nothing of adapters.
 */
#ifndef CKPT_LORA_BLOCKS_VIEW_H
#define CKPT_LORA_BLOCKS_VIEW_H

#include "engine/source_impl.h"

/* Rows of an inner matrix, with all of its columns. */
struct fsdpck_lora_block {
    size_t inner; /* ordinal */
    uint64_t first, nrows, ncols;
    uint64_t row, col; /* where it lies in the new matrix */
    uint64_t step;     /* its column k is column col + k * step there; 0 stands for 1 */
    double scale;      /* its values are multiplied by this and rounded to their dtype, to nearest, ties to even */
};

enum { FSDPCK_BLOCK_MAX_COLS = 1 << 16 }; /* of one with a step above 1 */

/* A matrix [nrows, ncols] of the dtype of its blocks: float64, float32, float16 or bfloat16. nlayer > 0: shown as
 * [nlayer, nrows / nlayer, ncols]. */
struct fsdpck_lora_blocks {
    const char *name;
    uint64_t nlayer, nrows, ncols;
    const struct fsdpck_lora_block *list; /* (n >= 1) of one dtype; they do not overlap */
    size_t n;
};

/* Adds the tensors to the end of src's catalogue; the others keep their ordinals. list: (n) malloc'ed; the call takes
 * it over, also when it fails. What it points to must live as long as src. After a failure src can only be closed. */
int fsdpck_lora_blocks_present(struct fsdpck_source *src, struct fsdpck_lora_blocks *list, size_t n,
                               struct fsdpck_error *err);

#endif
