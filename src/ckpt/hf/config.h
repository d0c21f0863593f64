/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and edits the keys of a model's config.json that a checkpoint needs. */
#ifndef CKPT_CONFIG_H
#define CKPT_CONFIG_H

#include <fsdpck/dtype.h>

#define FSDPCK_CONFIG_MAX_NBYTES (16u << 20)

/* text is NUL-terminated at nbytes, here and below. *tied: it has tie_word_embeddings: true (its own, or its
 * text_config's if it has none). file: for messages. */
int fsdpck_config_tied(const char *file, const char *text, size_t nbytes, bool *tied, struct fsdpck_error *err);
/* Reads num_attention_heads and num_key_value_heads (the same if it is absent), of the model or of its text_config;
 * both at least 1. */
int fsdpck_config_heads(const char *file, const char *text, size_t nbytes, uint64_t *heads, uint64_t *kv_heads,
                        struct fsdpck_error *err);
/* Makes a copy, malloc'ed, in which torch_dtype and dtype (its own, and those of text_config and the like) are `dtype`;
 * adds torch_dtype if it has neither. Every other byte is unchanged: numbers, order and spacing. */
int fsdpck_config_set_dtype(const char *file, const char *text, size_t nbytes, const char *dtype, char **out,
                            uint64_t *out_nbytes, struct fsdpck_error *err);
/* Reads the dtype that one of `keys` of the outermost object names (config.json: torch_dtype, dtype); *found false if
 * none does. */
int fsdpck_config_dtype(const char *file, const char *text, size_t nbytes, const char *const *keys, size_t nkeys,
                        bool *found, enum fsdpck_dtype *dtype, struct fsdpck_error *err);
/* key becomes "quantization_config" if the model, or one within it, has one that is not null (or an older
 * "compression_config"); else "". */
int fsdpck_config_quantized(const char *file, const char *text, size_t nbytes, char key[64], struct fsdpck_error *err);
/* Makes a copy, malloc'ed, without quantization_config and compression_config (its own, and those of inner models).
 * Every other byte is unchanged. */
int fsdpck_config_drop_quantized(const char *file, const char *text, size_t nbytes, char **out, uint64_t *out_nbytes,
                                 struct fsdpck_error *err);
/* Makes a copy, malloc'ed, with `json` as its quantization_config, as the last key; drops others as the above does. */
int fsdpck_config_set_quantized(const char *file, const char *text, size_t nbytes, const char *json, char **out,
                                uint64_t *out_nbytes, struct fsdpck_error *err);
/* Refuses a model_type: that it is `none`, and what the n rows of a table have. Each row, of row_nbytes, begins with a
 * pointer to a model_type. */
int fsdpck_config_refuse_family(const char *file, const char *model_type, const char *none, const void *rows, size_t n,
                                size_t row_nbytes, struct fsdpck_error *err);
/* Returns the name of the head that is tied to this embedding, or NULL if the name is not that of a known embedding. */
const char *fsdpck_config_tied_head(const char *embedding);

#endif
