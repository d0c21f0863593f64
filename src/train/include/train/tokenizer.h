/* SPDX-License-Identifier: Apache-2.0 */
/* Converts text to token ids and back, exactly as the `tokenizers` library does with the same tokenizer.json. Knows
 * nothing of chats, documents or training. */
#ifndef TRAIN_TOKENIZER_H
#define TRAIN_TOKENIZER_H

#include <fsdpck/error.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Immutable after loading: any number of threads may use it. */
struct tokenizer;

/* Reads FILE, a tokenizer.json. A feature that cannot be reproduced exactly is an error that names it. Takes seconds
 * for the largest vocabularies. */
FSDPCK_API int tokenizer_open(const char *file, struct tokenizer **out, struct fsdpck_error *err);
/* As tokenizer_open(), from memory; errors use `name` as the file name. */
FSDPCK_API int tokenizer_parse(const char *name, const char *json, size_t nbytes, struct tokenizer **out,
                               struct fsdpck_error *err);
FSDPCK_API void tokenizer_close(struct tokenizer *t); /* NULL does nothing */

FSDPCK_API uint32_t tokenizer_nvocab(const struct tokenizer *t);      /* largest id + 1 */
FSDPCK_API uint64_t tokenizer_fingerprint(const struct tokenizer *t); /* hash of the file's bytes */
/* The token as written in the file, NUL-terminated; NULL: no such id. */
FSDPCK_API const char *tokenizer_token(const struct tokenizer *t, uint32_t id);
FSDPCK_API bool tokenizer_is_special(const struct tokenizer *t, uint32_t id);
/* The id of a token as written in the file, or -1. */
FSDPCK_API int64_t tokenizer_id(const struct tokenizer *t, const char *token);

/* An encoder has buffers and a word cache, so it is not thread-safe. The tokenizer must outlive it. */
struct encoder;
FSDPCK_API int encoder_new(const struct tokenizer *t, struct encoder **out, struct fsdpck_error *err);
FSDPCK_API void encoder_free(struct encoder *e);

/* Zero-initialise; token_list_free() when done. */
struct token_list {
    uint32_t *ids;    /* (count) */
    uint32_t *begins; /* (count) byte offset in the text where each token begins; filled on request */
    size_t count, capacity, begins_capacity;
};
FSDPCK_API void token_list_free(struct token_list *list);

enum tokenizer_flag {
    TOKENIZER_SPECIAL = 1 << 0, /* add the tokens of the post-processor: <s> and the like */
    TOKENIZER_BEGINS = 1 << 1,  /* fill begins */
};
/* Appends the tokens of text to list. Invalid UTF-8 is an error with its offset. */
FSDPCK_API int tokenizer_encode(struct encoder *e, const char *text, size_t nbytes, int flags, struct token_list *list,
                                struct fsdpck_error *err);

/* Decodes ids into text, NUL-terminated; the caller frees it. As in the library, broken UTF-8 becomes U+FFFD and
 * invalid ids are skipped. */
FSDPCK_API int tokenizer_decode(const struct tokenizer *t, const uint32_t *ids, size_t count, bool skip_special,
                                char **out, size_t *nbytes, struct fsdpck_error *err);

/* Decodes token by token, for text that is displayed while it grows. Incomplete characters are held back; text once
 * returned never changes. The tokenizer must outlive it. */
struct token_text;
FSDPCK_API int token_text_new(const struct tokenizer *t, bool skip_special, struct token_text **out,
                              struct fsdpck_error *err);
FSDPCK_API void token_text_free(struct token_text *w); /* NULL does nothing */
/* *text: the text that can be shown now, possibly empty; borrowed until the next call. */
FSDPCK_API int token_text_add(struct token_text *w, uint32_t id, const char **text, size_t *nbytes,
                              struct fsdpck_error *err);
/* Returns the rest of the text; the next token begins a new one. */
FSDPCK_API int token_text_end(struct token_text *w, const char **text, size_t *nbytes, struct fsdpck_error *err);

#ifdef __cplusplus
}
#endif
#endif
