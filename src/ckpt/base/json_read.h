/* SPDX-License-Identifier: Apache-2.0 */
/* A pull reader for JSON documents that grow with the model (safetensors headers, index.json): RFC 8259, strict, no
 * DOM.
 *
 * One pass over the caller's buffer. Refused: invalid UTF-8, lone surrogates, byte order marks, comments, trailing
 * commas, text after the value, non-integers if an integer is required, integers outside 0 … 2^64-1, nesting deeper
 * than FSDPCK_JSON_MAX_DEPTH. Every error names the file and the byte offset. The caller must detect duplicate keys.
 *
 *     fsdpck_json_object(j);                      // '{'
 *     while (fsdpck_json_next_key(j, &key)) …     // true: one value must be consumed now; false: '}' or an error
 *     fsdpck_json_end(j);                         // nothing but white space may follow
 *     if (j->failed) …                            // calls after a failure do nothing: check once */
#ifndef CKPT_JSON_READ_H
#define CKPT_JSON_READ_H

#include <fsdpck/error.h>

#define FSDPCK_JSON_MAX_DEPTH 64

struct fsdpck_json {
    const char *file; /* for messages */
    uint64_t base;    /* offset of text[0] in file, for messages */
    const char *text;
    size_t nbytes, at;
    char *scratch; /* for the last string */
    size_t scratch_nbytes;
    uint32_t depth;
    bool first[FSDPCK_JSON_MAX_DEPTH + 1]; /* no member of this container was read yet */
    bool failed;
    struct fsdpck_error *err;
};

enum fsdpck_json_type {
    FSDPCK_JSON_OBJECT,
    FSDPCK_JSON_ARRAY,
    FSDPCK_JSON_STRING,
    FSDPCK_JSON_NUMBER,
    FSDPCK_JSON_TRUE,
    FSDPCK_JSON_FALSE,
    FSDPCK_JSON_NULL,
    FSDPCK_JSON_BAD
};

/* Begins to read text (nbytes), which must live until the last call. err may be NULL. */
void fsdpck_json_begin(struct fsdpck_json *j, const char *file, uint64_t base, const char *text, size_t nbytes,
                       struct fsdpck_error *err);
void fsdpck_json_free(struct fsdpck_json *j); /* the last string becomes invalid */
enum fsdpck_json_type fsdpck_json_peek(
    struct fsdpck_json *j); /* type of the next value; consumes only white space; BAD sets no error */
bool fsdpck_json_object(struct fsdpck_json *j); /* opens an object; false on failure, as for an array */
bool fsdpck_json_array(struct fsdpck_json *j);
/* Reads the next key of the open object, unescaped, NUL-terminated, valid until the next string is read. Refuses a NUL
 * inside a string. */
bool fsdpck_json_next_key(struct fsdpck_json *j, const char **key);
bool fsdpck_json_next_item(struct fsdpck_json *j);     /* true: another value of the open array follows */
const char *fsdpck_json_string(struct fsdpck_json *j); /* like keys; NULL on failure */
uint64_t fsdpck_json_u64(struct fsdpck_json *j);       /* 0 on failure: see failed */
bool fsdpck_json_bool(struct fsdpck_json *j);
void fsdpck_json_skip(struct fsdpck_json *j); /* any value, fully checked */
/* Like skip, but also returns the raw text of the value (not NUL-terminated, points into the document). */
void fsdpck_json_raw(struct fsdpck_json *j, const char **text, size_t *nbytes);
void fsdpck_json_end(struct fsdpck_json *j);
/* Fails at the current position with a message; the first failure is kept. */
void fsdpck_json_fail(struct fsdpck_json *j, int code, const char *fmt, ...) FSDPCK_PRINTF(3, 4);

#endif
