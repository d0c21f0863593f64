/* SPDX-License-Identifier: Apache-2.0 */
/* Texts that end a sample, found as its tokens become text. */
#ifndef SERVE_STOPPER_H
#define SERVE_STOPPER_H

#include <jansson.h>
#include <train/tokenizer.h>

struct stopper;
/* stop: a string, or a list of strings. tokenizer: NULL if the model has none; must outlive it. *ctx: for
 * stopper_ends(). Returns NULL, or what is wrong. */
const char *stopper_new(const struct tokenizer *tokenizer, const json_t *stop, uint32_t nsamples, struct stopper **out,
                        void **ctx);
void stopper_free(struct stopper *s); /* NULL does nothing */
/* As serve_sample.ends, for up to nsamples of them. */
bool stopper_ends(void *ctx, uint32_t number, const int32_t *ids, size_t n);

#endif
