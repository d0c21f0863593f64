/* SPDX-License-Identifier: Apache-2.0 */
/* A linear layer of a model, as the layout tables name its parameters. */
#ifndef TRAIN_LINEAR_LAYER_H
#define TRAIN_LINEAR_LAYER_H

#include <stdbool.h>
#include <stdint.h>

enum { LAYOUT_NAME = 256 };

/* A linear layer, or an embedding. An index of -1 means that it has no such parameter. */
struct linear {
    char path[LAYOUT_NAME]; /* "model.layers.0.self_attn.q_proj" */
    int64_t nin, nout;
    int32_t w, bias;
    bool fused; /* of an expert, whose weight, (nin, nout), and bias are row `expert` of w and bias */
    int64_t expert;
    bool bare;         /* PEFT has no adapter for it */
    int32_t a, b;      /* LoRA: (r, nin), (nout, r) */
    int32_t magnitude; /* DoRA: (nout) */
    int64_t norms_at;  /* DoRA: elements: offset of its row norms in compute.norms */
    int64_t r;
    float scale;
    uint32_t dropout_name; /* XXH32 of the path */
};

#endif
