/* SPDX-License-Identifier: Apache-2.0 */
/* Generation with a key-value cache: a prompt goes through the model in one forward pass, further tokens one by one.
 * Reads parameters as compute.h does, whoever owns the shards, and calls the same hook. Knows nothing of text,
 * sampling or ranks. */
#ifndef TRAIN_DECODE_H
#define TRAIN_DECODE_H

#include "model/compute.h"

struct decode;

/* from: whose device, stream and parameters are used; borrowed, and unchanged. prompt: the longest, most: of prompt and
 * what follows it, in tokens. memory: decode_sizes.device_nbytes of the device's, borrowed; NULL: it takes its own. */
int decode_new(const struct compute *from, int64_t prompt, int64_t most, void *memory, struct decode **out,
               struct fsdpck_error *err);
void decode_free(struct decode *d); /* NULL does nothing */
struct decode_sizes {
    size_t device_nbytes, host_nbytes;
};
/* Bytes that decode_new asks for; from as there. */
struct decode_sizes decode_count(const struct compute *from, int64_t prompt, int64_t most);

/* From nothing: logits of what follows the n tokens. (nvocab), borrowed until the next call. hook: NULL where nothing
 * has to be gathered; it sees what compute_loss shows it, in both calls. */
int decode_prompt(struct decode *d, const struct compute_hook *hook, const int32_t *ids, int64_t n,
                  const float **logits, struct fsdpck_error *err);
/* One token more. */
int decode_token(struct decode *d, const struct compute_hook *hook, int32_t id, const float **logits,
                 struct fsdpck_error *err);
/* Tokens that are kept, and going back to the first n of them. */
int64_t decode_ntok(const struct decode *d);
void decode_rewind(struct decode *d, int64_t n);

#endif
