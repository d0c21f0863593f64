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
    bool fused;        /* of an expert, whose weight, (nin, nout), and bias are row `expert` of w and bias */
    int64_t expert;    /* of a layer's experts; 0 for others */
    bool bare;         /* no module of PEFT: target_modules cannot name it */
    int32_t a, b;      /* LoRA: (r, nin), (nout, r) */
    int32_t magnitude; /* DoRA: (nout) */
    int64_t npairs; /* a and b have the pairs of so many experts: a (npairs·r, nin), b (…, r·npairs), in which the
                       expert's number runs fastest; 0: the layer's own pair */
    int64_t a_row, b_row; /* its first row in a and b */
    int64_t norms_at;     /* DoRA: elements: offset of its row norms in compute.norms */
    int64_t r;
    float scale;
    uint32_t dropout_name; /* XXH32 of the path */
};

#endif
