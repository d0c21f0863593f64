/* SPDX-License-Identifier: Apache-2.0 */
/* Pictures as training data: each is a document, and a micro-batch of its own. Time, noise and whether its caption is
 * left out are a function of the seed and of the picture's number in the run. */
#ifndef TRAIN_DATA_PICTURES_H
#define TRAIN_DATA_PICTURES_H

#include "data/data.h"
#include "data/picture_cache.h"

struct picture_entry {
    uint64_t latents, text; /* names in the cache */
    int64_t height, width;  /* latent pixels */
};

struct picture_set {
    struct picture_cache cache;
    struct picture_entry *entries; /* (n) owned */
    size_t n;
    uint64_t no_text; /* the embedding for a caption that is left out */
    int64_t ntext, text_width, nchannel;
    bool rounded; /* embeddings are bf16 */
};

/* Takes the set. */
int data_open_pictures(const struct train_config *config, struct picture_set *set, struct data **out,
                       struct fsdpck_error *err);
void picture_set_free(struct picture_set *s);
bool data_has_pictures(const struct data *d);

/* The input of one micro-batch. The arrays are the caller's. */
struct picture_sample {
    int64_t height, width;
    float *latents, *noise; /* (height · width, nchannel) */
    float *text;            /* (ntext, text_width) */
    float sigma, weight;
};
/* step: from 0; UINT64_MAX: an evaluation, with fixed times and noise. */
/* In latent pixels. */
void data_picture_size(const struct data *d, const struct micro_batch *m, int64_t *height, int64_t *width);
int data_fill_picture(const struct data *d, const struct micro_batch *m, const struct train_config *config,
                      uint64_t step, struct picture_sample *out, struct fsdpck_error *err);

#endif
