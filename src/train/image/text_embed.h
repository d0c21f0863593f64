/* SPDX-License-Identifier: Apache-2.0 */
/* Embeddings of texts for FLUX.2 [klein]: what three layers of Qwen3 give, side by side. */
#ifndef TRAIN_TEXT_EMBED_H
#define TRAIN_TEXT_EMBED_H

#include <train/sample.h>

#include "image/pipeline.h"

struct text_embed;

/* Loads the layers of the encoder that are needed. ntok: of each text. */
int text_embed_open(const struct pipeline *p, const struct sampler_options *opt, int64_t ntok, struct text_embed **out,
                    struct fsdpck_error *err);
void text_embed_close(struct text_embed *t); /* NULL does nothing; its memory is back */
int64_t text_embed_width(const struct text_embed *t);
/* out: (ntok, width). *cut: the text had more tokens. */
int text_embed_run(struct text_embed *t, const char *text, float *out, bool *cut, struct fsdpck_error *err);

#endif
