/* SPDX-License-Identifier: Apache-2.0 */
/* Generates text from sample.prompts during training, with the sharded model, or draws pictures
 * (run/picture_samples.h). Tokens and pixels are the same for any number of ranks. */
#ifndef TRAIN_SAMPLES_H
#define TRAIN_SAMPLES_H

#include "rank/rank.h"

struct samples;
struct picture_samples; /* run/picture_samples.h */

/* Reads the config's prompts. *out is NULL if there are none. nvocab: the model's. */
int samples_open(const struct train_config *config, int64_t nvocab, const struct fsdpck_options *fs,
                 struct samples **out, struct fsdpck_error *err);
/* Those of a run on pictures; NULL: none. */
struct picture_samples *samples_of_pictures(const struct samples *s);
void samples_free(struct samples *s);           /* NULL does nothing */
uint64_t samples_hash(const struct samples *s); /* hash of prompts, stop tokens and sample.every; NULL: 0 */
bool samples_are_dated(
    const struct samples *s); /* true if the template may show the date from the config; NULL: false */
/* Lengths in tokens of the longest prompt, and of that plus its continuation; NULL: 0. */
void samples_lengths(const struct samples *s, int64_t *prompt, int64_t *most);

/* Samples from all prompts, distributed over the ranks; text greedily. Collective. Rank 0 writes
 * output_dir/samples/step-NUMBER.txt and notes. */
int rank_sample(struct rank *r, struct fsdpck_error *err);

#endif
