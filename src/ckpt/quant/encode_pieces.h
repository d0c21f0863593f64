/* SPDX-License-Identifier: Apache-2.0 */
/* Pieces of a weight: whole blocks that are quantized together. The last one is kept, because the next box is often the
 * rest of it. */
#ifndef CKPT_QUANT_ENCODE_PIECES_H
#define CKPT_QUANT_ENCODE_PIECES_H

#include "quant/encode.h"

#define FSDPCK_QUANT_TILE_NELEM  FSDPCK_QUANT_MAX_GROUP /* most elements that are read at once */
#define FSDPCK_QUANT_PIECE_NELEM (1u << 19) /* elements of a piece of several rows of blocks: a cache holds them */
#define FSDPCK_QUANT_STRIP_NELEM \
    (1u << 22) /* a row of blocks with up to so many elements is one piece, in several tiles */

/* Bytes of a scale, and of a row of codes or scales of so many columns. */
uint64_t fsdpck_quant_scale_nbytes(const struct fsdpck_quant_target_form *form);
uint64_t fsdpck_quant_codes_pitch(const struct fsdpck_quant_target_form *form, uint64_t ncols);
uint64_t fsdpck_quant_scales_pitch(const struct fsdpck_quant_target_form *form, uint64_t ncols);
/* Finds e->target's global, if the form needs one and it is not known. */
int fsdpck_quant_need_global(struct fsdpck_quant_encoder *e, struct fsdpck_fetch *f, struct fsdpck_error *err);
/* Whether the piece that is kept holds element (row, col) of the target; codes: its codes too. */
bool fsdpck_quant_holds(const struct fsdpck_quant_encoder *e, const struct fsdpck_quant_target *t, uint64_t row,
                        uint64_t col, bool codes, bool dry);
/* Makes e->piece one that holds the element, of those that the box needs. */
int fsdpck_quant_load_piece(struct fsdpck_quant_encoder *e, struct fsdpck_fetch *f, struct fsdpck_quant_target *t,
                            const struct fsdpck_quant_piece *box, uint64_t row, uint64_t col, bool codes,
                            struct fsdpck_error *err);
/* Whether the box of scales was kept when codes were computed, and is copied. */
bool fsdpck_quant_take_scales(const struct fsdpck_quant_encoder *e, struct fsdpck_quant_target *t,
                              const struct fsdpck_matrix_box *box, void *dst, uint64_t stride);

#endif
