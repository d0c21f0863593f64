/* SPDX-License-Identifier: Apache-2.0 */
/* Embeddings of texts for FLUX.2 [klein]: what three layers of Qwen3 give, side by side. */
#ifndef TRAIN_TEXT_EMBED_H
#define TRAIN_TEXT_EMBED_H

#include <train/sample.h>

#include "image/pipeline.h"
#include "sample/whole.h"

/* The layers of the encoder that are needed, and how ranks share them. */
struct text_encoder {
    struct whole whole;
    bool last_is_normed; /* the model has no layer above the last state, which then is the model's output */
};

/* ntok: of each text. among: the job whose ranks hold the encoder; NULL: a single rank does. *out needs
 * text_encoder_close() also after a failure; it must not move. */
int text_encoder_describe(const struct pipeline *p, const struct sampler_options *opt, int64_t ntok,
                          const struct job *among, struct text_encoder *out, struct fsdpck_error *err);
void text_encoder_close(struct text_encoder *e);          /* does nothing if all zeros */
int64_t text_encoder_width(const struct text_encoder *e); /* features of an embedded token */

struct text_embed;

/* Loads the encoder in this process. */
int text_embed_open(const struct pipeline *p, const struct sampler_options *opt, int64_t ntok, struct text_embed **out,
                    struct fsdpck_error *err);
/* Collective: each rank loads its part. encoder, comm: borrowed. */
int text_embed_join(const struct pipeline *p, struct text_encoder *encoder, struct comm *comm, struct text_embed **out,
                    struct fsdpck_error *err);
void text_embed_close(struct text_embed *t); /* NULL does nothing; its memory is back */
int64_t text_embed_width(const struct text_embed *t);
/* out: (ntok, width). *cut: the text had more tokens. Among ranks, all of them embed a text or skip at the same time.
 */
int text_embed_run(struct text_embed *t, const char *text, float *out, bool *cut, struct fsdpck_error *err);
int text_embed_skip(struct text_embed *t, struct fsdpck_error *err);

#endif
