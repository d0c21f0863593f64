/* SPDX-License-Identifier: Apache-2.0 */
/* The view of requantize.c, and how it measures what quantizing again takes from a change. */
#ifndef CKPT_LORA_REQUANTIZE_IMPL_H
#define CKPT_LORA_REQUANTIZE_IMPL_H

#include "engine/view.h"
#include "lora/rounding.h"
#include "quant/encode.h"

#define REQUANTIZE_PIECE_NELEM (1u << 18) /* elements that are measured at once */
#define REQUANTIZE_ROOM        4          /* floats for each: before, exact, dequantized, scales */

/* Where the values of a tensor come from. */
struct requantize_shown {
    enum { STORED, MERGED, QUANTIZED } from;
    enum fsdpck_quant_output output; /* QUANTIZED */
    size_t merged;                   /* MERGED: ordinal; QUANTIZED: position in the targets */
};

struct requantize_view {
    struct fsdpck_view view;
    struct fsdpck_source *merged, *adapter;
    struct fsdpck_quant_targets targets;
    struct fsdpck_quant_target_form *forms; /* (targets.count) */
    struct fsdpck_rounding *rounding;       /* (targets.count) */
    struct requantize_shown *shown;         /* (tensors) */
};

struct requantize_state {
    struct fsdpck_quant_encoder encoder; /* if there are targets */
    struct fsdpck_fetch before, merged;  /* of the dequantized base, and of the same one merged */
    float *room;                         /* REQUANTIZE_ROOM * REQUANTIZE_PIECE_NELEM */
    struct fsdpck_quant_buffer scales, turned;
    const struct requantize_view *view;
};

/* Measures the elements whose codes are a box of bytes. */
int fsdpck_lora_requantize_measure(const struct requantize_view *v, struct requantize_state *s,
                                   struct fsdpck_quant_target *t, const struct fsdpck_matrix_box *box,
                                   const uint8_t *codes, uint64_t stride, struct fsdpck_error *err);
/* Measures a piece of experts that are stored turned, of which a band of codes has parts of all columns. ctx: the
 * state. */
int fsdpck_lora_requantize_measure_turned(void *ctx, struct fsdpck_quant_encoder *e, struct fsdpck_error *err);

#endif
