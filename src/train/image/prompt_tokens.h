/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens of a text, as the text encoder of FLUX.2 [klein] gets them: one user's message in the template, with thinking
 * off. */
#ifndef TRAIN_PROMPT_TOKENS_H
#define TRAIN_PROMPT_TOKENS_H

#include <train/chat.h>

#include "image/pipeline.h"

struct prompt_tokens {
    struct chat *chat;
    int32_t pad; /* fills a text up, on the right */
};

/* *out needs prompt_tokens_close() also after a failure. */
int prompt_tokens_open(const struct pipeline *p, struct prompt_tokens *out, struct fsdpck_error *err);
void prompt_tokens_close(struct prompt_tokens *t);
/* At least one, without padding. The caller releases *list, also after a failure. */
int prompt_tokens_of(const struct prompt_tokens *t, const char *text, struct token_list *list,
                     struct fsdpck_error *err);

#endif
