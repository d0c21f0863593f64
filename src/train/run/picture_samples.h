/* SPDX-License-Identifier: Apache-2.0 */
/* Draws pictures of sample.prompts during training, with the sharded transformer. A picture is the same for any number
 * of ranks. */
#ifndef TRAIN_PICTURE_SAMPLES_H
#define TRAIN_PICTURE_SAMPLES_H

#include "data/data_pictures.h"
#include "rank/rank.h"

struct picture_samples;

/* Reads the config's prompts, of which there are some. */
int picture_samples_open(const struct train_config *config, const struct fsdpck_options *fs,
                         struct picture_samples **out, struct fsdpck_error *err);
void picture_samples_free(struct picture_samples *s); /* NULL does nothing */
/* Their texts, and where the names of their embeddings go: (*n) */
const char *const *picture_samples_texts(struct picture_samples *s, uint64_t **names, size_t *n);
/* Where the embeddings are, in which shape. */
void picture_samples_find(struct picture_samples *s, const struct picture_set *set);
uint64_t picture_samples_hash(const struct picture_samples *s);
/* The largest picture in latent pixels, and the bytes that the decoder takes for it. */
int picture_samples_count(const struct picture_samples *s, const struct train_config *config, int64_t *height,
                          int64_t *width, uint64_t *decoder_nbytes, struct fsdpck_error *err);

/* Draws all pictures, distributed over the ranks. Collective. Each rank writes its own, as
 * output_dir/samples/step-NUMBER-PROMPT.png. */
int picture_samples_draw(struct picture_samples *s, struct rank *r, struct fsdpck_error *err);

#endif
