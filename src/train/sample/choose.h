/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses a token from logits by a sample_rule. Knows nothing of models or text. */
#ifndef TRAIN_CHOOSE_H
#define TRAIN_CHOOSE_H

#include <train/sample.h>

struct choose;

int choose_new(int64_t nvocab, struct choose **out, struct fsdpck_error *err);
void choose_free(struct choose *c); /* NULL does nothing */
/* Starts a sample: forgets earlier tokens, and counts the prompt's tokens for repetition_penalty. */
void choose_begin(struct choose *c, const uint32_t *ids, size_t count);
/* Chooses token `at` (from 0) of sample `number`, and counts it as seen. FSDPCK_ERR_FORMAT: no logit is finite. */
int choose_token(struct choose *c, const struct sample_rule *rule, const float *logits, uint64_t number, uint64_t at,
                 uint32_t *id, struct fsdpck_error *err);
bool choose_is_stop(const struct sample_rule *rule, uint32_t id);

#endif
