/* SPDX-License-Identifier: Apache-2.0 */
/* Computes boxes of the tensors of quantized weights: reads the blocks of the weight that the box needs, and quantizes
 * them. One encoder for each thread. */
#ifndef CKPT_QUANT_ENCODE_H
#define CKPT_QUANT_ENCODE_H

#include "quant/inputs.h"
#include "quant/targets.h"

#define FSDPCK_QUANT_MAX_GROUP (1u << 20) /* elements of a block; a weight of a form without blocks: of a row */

/* A box of a weight, in elements. */
struct fsdpck_quant_piece {
    uint64_t row, nrows, col, ncols;
};

struct fsdpck_quant_encoder {
    struct fsdpck_fetch fetch; /* of the source that holds the weights */
    struct fsdpck_quant_targets *targets;
    const struct fsdpck_quant_target_form *form;
    struct fsdpck_quant_target *target; /* whose piece is quantized; NULL: none */
    struct fsdpck_quant_piece piece;
    bool has_codes, dry;
    struct fsdpck_quant_buffer raw, in, part, codes, scales, wide, nested;
    /* Called when codes and scales of a piece were computed. NULL: nobody asked for it. */
    int (*watch)(void *ctx, struct fsdpck_quant_encoder *e, struct fsdpck_error *err);
    void *watch_ctx;
    bool *counted; /* (ntargets) the pass for the largest value is counted, in a dry fetch */
};

int fsdpck_quant_encoder_init(struct fsdpck_quant_encoder *e, struct fsdpck_source *src,
                              struct fsdpck_quant_targets *targets, struct fsdpck_error *err);
void fsdpck_quant_encoder_free(struct fsdpck_quant_encoder *e);
/* Most memory of an encoder, besides its workspace. */
uint64_t fsdpck_quant_encoder_nbytes(const struct fsdpck_quant_targets *targets);
/* Computes a box of one of a weight's tensors, as compute() of engine/value_view.h does. NaN and infinity are refused.
 */
int fsdpck_quant_encode(struct fsdpck_quant_encoder *e, struct fsdpck_fetch *f, struct fsdpck_quant_target *target,
                        enum fsdpck_quant_output output, const struct fsdpck_matrix_box *box, void *dst,
                        uint64_t stride, struct fsdpck_error *err);

/* For quant/ only: the steps of the above. */
/* Scales in the form's dtype. */
int fsdpck_quant_encode_scales(struct fsdpck_quant_encoder *e, struct fsdpck_fetch *f,
                               struct fsdpck_quant_target *target, const struct fsdpck_matrix_box *box, void *dst,
                               uint64_t stride, struct fsdpck_error *err);
/* A box of one row, dense. */
int fsdpck_quant_encode_nested(struct fsdpck_quant_encoder *e, struct fsdpck_fetch *f,
                               struct fsdpck_quant_target *target, enum fsdpck_quant_output output,
                               const struct fsdpck_matrix_box *box, uint8_t *dst, struct fsdpck_error *err);

#endif
