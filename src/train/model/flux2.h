/* SPDX-License-Identifier: Apache-2.0 */
/* The transformer of FLUX.2 (Black Forest Labs 2025; diffusers' Flux2Transformer2DModel): its numbers, and the linear
 * layers of its blocks. A picture's latents, noisy, and the embeddings of a text go in; the velocity comes out. Blocks
 * of the first kind have weights of their own for text and for image, which meet in attention; those of the second kind
 * take both as one sequence, the text first. Knows nothing of ranks, files or pixels. */
#ifndef TRAIN_FLUX2_H
#define TRAIN_FLUX2_H

#include <stdbool.h>
#include <stdint.h>

#include "model/linear_layer.h"

enum { FLUX2_AXES = 4, FLUX2_FREQUENCIES = 128 };

/* Of transformer/config.json; hidden, heads and eps are in struct model. */
struct flux2 {
    int64_t ndouble, nsingle; /* blocks of each kind */
    int64_t nchannel;         /* of a latent pixel */
    int64_t text_width;       /* of a token's embedding */
    int64_t axes[FLUX2_AXES]; /* features of a head that turn with time, row, column and place in the text */
    double theta;
    int64_t ntext; /* tokens of each text that is trained on; from the config */
    bool guided;   /* it takes the strength of guidance */
};

/* One stream of a block of the first kind. */
struct flux2_stream {
    struct linear q, k, v, out;    /* out: from the attention */
    struct linear mlp_in, mlp_out; /* mlp_in gives gate and up, side by side */
    int32_t q_norm, k_norm;
};

struct flux2_double {
    struct flux2_stream text, image;
};

struct flux2_single {
    struct linear in, out; /* in gives q, k, v, gate and up, side by side; out takes attention and MLP */
    int32_t q_norm, k_norm;
};

/* Not here: x_embedder and proj_out, which are the layout's embed and head. */
struct flux2_layers {
    struct linear time[2], guidance[2];
    struct linear modulation_text, modulation_image, modulation_single;
    struct linear context; /* of the text's embeddings */
    struct linear last;    /* norm_out.linear: scale and shift */
    bool first_trains;     /* something before the first block is trained */
    int64_t ndouble, nsingle;
    struct flux2_double *doubles; /* (ndouble) owned */
    struct flux2_single *singles; /* (nsingle) owned */
};

#endif
