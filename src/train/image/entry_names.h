/* SPDX-License-Identifier: Apache-2.0 */
/* An entry of the cache is named by what determines it: a text by the encoder of its tokens, their number and the
 * dtype; latents by the bytes of the picture, its bucket, and the autoencoder. */
#ifndef TRAIN_ENTRY_NAMES_H
#define TRAIN_ENTRY_NAMES_H

#include "image/fit.h"
#include "image/pipeline.h"

struct entry_names {
    uint64_t of_text, of_vae; /* of the text encoder with its tokenizer; of the autoencoder */
    int64_t ntext;            /* tokens of a text */
    bool rounded;             /* they are computed in bf16 */
    bool tiled;               /* large pictures in tiles */
};

/* Sets of_text and of_vae. Reads the configurations, and a sample of each tensor. */
int entry_names_open(const struct pipeline *p, const struct fsdpck_options *fs, struct entry_names *out,
                     struct fsdpck_error *err);
uint64_t entry_name_of_text(const struct entry_names *n, const char *text);
/* x: measured. */
uint64_t entry_name_of_latents(const struct entry_names *n, const struct listed *x, const struct fit *f);

#endif
