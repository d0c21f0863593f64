/* SPDX-License-Identifier: Apache-2.0 */
/* Generation with a key-value cache: a prompt goes through the model in one forward pass, further tokens one by one.
 * Reads parameters as in compute.h, regardless of who owns the shards, and calls the same hook. Knows nothing of text,
 * sampling or ranks. */
#ifndef TRAIN_DECODE_H
#define TRAIN_DECODE_H

#include "model/compute.h"

struct decode;
struct kv;
struct kv_pool;

/* from: provides device, stream and parameters; borrowed, and unchanged. prompt, most: largest number of tokens of a
 * prompt, and of a prompt with its continuation. memory: decode_sizes.device_nbytes of device memory, borrowed; NULL:
 * allocates it. */
int decode_new(const struct compute *from, int64_t prompt, int64_t most, void *memory, struct decode **out,
               struct fsdpck_error *err);
/* The same with a cache in pages of a pool, which is borrowed; on the CPU. */
int decode_new_paged(const struct compute *from, int64_t prompt, struct kv_pool *pool, struct decode **out,
                     struct fsdpck_error *err);
void decode_free(struct decode *d); /* NULL does nothing */
struct decode_sizes {
    size_t device_nbytes, host_nbytes;
};
/* The bytes that decode_new() needs. */
struct decode_sizes decode_count(const struct compute *from, int64_t prompt, int64_t most);

/* Empties the cache and runs n tokens. *logits: prediction after the last token, (nvocab), borrowed until the next
 * call. hook: as in compute_loss(); NULL if no gathers are necessary. */
int decode_prompt(struct decode *d, const struct compute_hook *hook, const int32_t *ids, int64_t n,
                  const float **logits, struct fsdpck_error *err);
/* Appends one token. */
int decode_token(struct decode *d, const struct compute_hook *hook, int32_t id, const float **logits,
                 struct fsdpck_error *err);
/* Appends a token to each of n sequences of one stream and one base, ids[i] to all[i]; logits: (n). The bits of each
 * are those of decode_token(). */
int decode_tokens(struct decode *const *all, size_t n, const int32_t *ids, const float **logits,
                  struct fsdpck_error *err);
/* The cache of a sequence; borrowed. decode_go_on(): a new sequence of the same pool and parameters begins with the
 * pages of another cache (model/kv.h). */
const struct kv *decode_kv(const struct decode *d);
int decode_go_on(struct decode *d, const struct kv *from, struct fsdpck_error *err);
/* Number of tokens in the cache; truncates the cache to the first n. */
int64_t decode_ntok(const struct decode *d);
void decode_rewind(struct decode *d, int64_t n);

#endif
