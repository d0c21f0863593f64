/* SPDX-License-Identifier: Apache-2.0 */
/* A growing text buffer with JSON escapes: for documents that grow with the model, which are too large for a DOM. After
 * an allocation failure every call does nothing; fsdpck_text_check() reports it. */
#ifndef CKPT_JSON_WRITE_H
#define CKPT_JSON_WRITE_H

#include <fsdpck/tensor.h>

struct fsdpck_text {
    char *data; /* NUL-terminated after the first write */
    size_t nbytes, capacity;
    bool failed;
};

void fsdpck_text_add(struct fsdpck_text *t, const void *bytes, size_t nbytes);
void fsdpck_text_printf(struct fsdpck_text *t, const char *fmt, ...) FSDPCK_PRINTF(2, 3);
void fsdpck_text_json(struct fsdpck_text *t, const char *s);                             /* "s", quoted and escaped */
void fsdpck_text_json_u64s(struct fsdpck_text *t, const uint64_t *values, size_t count); /* [1,2,3] */
void fsdpck_text_json_path(struct fsdpck_text *t, const struct fsdpck_key *path, uint32_t npath); /* ["optim",3,"x"] */
void fsdpck_text_hex(struct fsdpck_text *t, const uint8_t *bytes, size_t nbytes); /* "00ff…", quoted, lower case */
int fsdpck_text_check(const struct fsdpck_text *t, struct fsdpck_error *err);
void fsdpck_text_free(struct fsdpck_text *t);

/* Writes 2*nbytes lower-case hex digits, without a NUL; returns the end. The reverse parses exactly 2*nbytes lower-case
 * hex digits. */
char *fsdpck_hex_format(const uint8_t *bytes, size_t nbytes, char *out);
bool fsdpck_hex_parse(const char *hex, uint8_t *bytes, size_t nbytes);

#endif
