/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and edits the keys of a model's config.json that a checkpoint needs. */
#ifndef CKPT_CONFIG_H
#define CKPT_CONFIG_H

#include <fsdpck/dtype.h>

#define FSDPCK_CONFIG_MAX_NBYTES (16u << 20)

/* text is NUL-terminated at nbytes, here and below.
 * Whether it says tie_word_embeddings: true (itself, or its text_config where it does not say). file: for messages. */
int fsdpck_config_tied(const char *file, const char *text, size_t nbytes, bool *tied, struct fsdpck_error *err);
/* num_attention_heads and num_key_value_heads (the same where it is absent), both from 1. */
int fsdpck_config_heads(const char *file, const char *text, size_t nbytes, uint64_t *heads, uint64_t *kv_heads,
                        struct fsdpck_error *err);
/* A copy, malloc'ed, in which torch_dtype and dtype (its own, and those of text_config and the like) are `dtype`;
 * torch_dtype is added where it has neither. Every other byte stays as it is: numbers, order and spacing. */
int fsdpck_config_set_dtype(const char *file, const char *text, size_t nbytes, const char *dtype, char **out,
                            uint64_t *out_nbytes, struct fsdpck_error *err);
/* The dtype that one of `keys` of the outermost object names (config.json: torch_dtype, dtype); *found false where none
 * does. */
int fsdpck_config_dtype(const char *file, const char *text, size_t nbytes, const char *const *keys, size_t nkeys,
                        bool *found, enum fsdpck_dtype *dtype, struct fsdpck_error *err);
/* key becomes "quantization_config" where it, or a model within it, has one that is not null (or an older
 * "compression_config"); else "". */
int fsdpck_config_quantized(const char *file, const char *text, size_t nbytes, char key[64], struct fsdpck_error *err);
/* Returns the name of the head that is tied to this embedding, or NULL if the name is not that of a known embedding. */
const char *fsdpck_config_tied_head(const char *embedding);

#endif
