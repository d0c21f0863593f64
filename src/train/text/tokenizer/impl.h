/* SPDX-License-Identifier: Apache-2.0 */
/* Internals of a tokenizer: the reader fills these structs; the encoder and the decoder use them. */
#ifndef TRAIN_TEXT_TOK_IMPL_H
#define TRAIN_TEXT_TOK_IMPL_H

#include <train/tokenizer.h>

#include "text/maps.h"
#include "text/tokenizer/unicode.h"

struct json_t;

enum {
    TOK_MAX_FILE = 1 << 28,
    TOK_MAX_TEXT = 1 << 28,
    TOK_MAX_ID = 1 << 24, /* the word cache packs an id with 8 more bits into 32 */
    TOK_MAX_STEPS = 8,
};
#define TOK_NONE UINT32_MAX

/* An added token: matched in the text before any other step. */
struct added {
    uint32_t id;
    struct span pattern; /* in t->strings: the content, normalised if the token asks for it */
    bool single_word, lstrip, rstrip, special, normalized;
};

enum normalize_kind {
    NORMALIZE_PREPEND,
    NORMALIZE_REPLACE,
    NORMALIZE_NFC,
    NORMALIZE_NFD,
    NORMALIZE_NFKD
}; /* NFKC is two steps: NFKD, then NFC */
struct normalize_step {
    enum normalize_kind kind;
    struct span from, to; /* REPLACE; PREPEND uses `to` only */
};

/* Returns the length of the first word of s (n > 0 bytes). */
struct split_step;
typedef size_t (*split_scan_fn)(const uint8_t *bits, const char *s, size_t n);

enum split_kind { SPLIT_SCAN, SPLIT_REGEX, SPLIT_DIGITS, SPLIT_METASPACE, SPLIT_PREFIX_SPACE };
struct split_step {
    enum split_kind kind;
    split_scan_fn scan;        /* SCAN */
    struct split_regex *regex; /* REGEX. Owned */
    bool individual;           /* DIGITS: split each digit; METASPACE: split into words */
    int prepend;               /* METASPACE: enum metaspace_prepend */
    struct span replacement;   /* METASPACE: a single character */
};
enum metaspace_prepend { PREPEND_ALWAYS, PREPEND_FIRST, PREPEND_NEVER };

enum decode_kind {
    DECODE_BYTE_LEVEL,
    DECODE_REPLACE,
    DECODE_BYTE_FALLBACK,
    DECODE_FUSE,
    DECODE_STRIP,
    DECODE_METASPACE
};
struct decode_step {
    enum decode_kind kind;
    struct span from, to; /* REPLACE; STRIP and METASPACE: `from` is a single character */
    uint32_t start, stop; /* STRIP */
    bool keeps_first;     /* METASPACE with prepend_scheme never */
};

struct id_list {
    uint32_t *ids;
    size_t count, capacity;
};

struct tokenizer {
    char *name;
    uint64_t fingerprint;
    uint8_t *bits;           /* (UNICODE_NPOINTS) */
    struct text strings;     /* the strings of the file that the tokenizer needs */
    struct span *tokens;     /* (nids) spans in strings; NO_SPAN: no such id */
    uint8_t *special;        /* (nids) */
    uint32_t nids, nmodel;   /* nmodel: number of model tokens, without added ones */
    struct string_map ids;   /* token as in the file → id: model tokens, then added ones */
    struct string_map words; /* byte-level: token as bytes → id */
    struct pair_map merges;
    uint32_t byte_ids[256]; /* byte-level: symbol of a byte; otherwise of an ASCII character. TOK_NONE: none */
    uint32_t fallback[256]; /* id of "<0x00>" … "<0xFF>" */
    uint32_t unk;
    bool byte_level, ignore_merges, byte_fallback, fuse_unk;
    bool breaks_at_space; /* no merge crosses the boundary before a "▁": words merge independently */
    struct added *added;
    size_t nadded;
    struct trie raw, normalized; /* added tokens by index */
    struct normalize_step normalize[TOK_MAX_STEPS + 1];
    struct split_step split[TOK_MAX_STEPS];
    struct decode_step decode[TOK_MAX_STEPS];
    size_t nnormalize, nsplit, ndecode;
    bool has_decoder;
    struct id_list prefix, suffix;
};

/* Each reads a part of tokenizer.json. Call them in this order. */
int tok_read_steps(struct tokenizer *t, struct json_t *root, struct fsdpck_error *err);
int tok_read_model(struct tokenizer *t, struct json_t *model, struct fsdpck_error *err);
int tok_read_added(struct tokenizer *t, struct json_t *list, struct fsdpck_error *err);
int tok_read_post(struct tokenizer *t, struct json_t *post, struct fsdpck_error *err);
int tok_read_decoder(struct tokenizer *t, struct json_t *decoder, struct fsdpck_error *err);

/* The byte that a character stands for in GPT-2's byte-level alphabet, or -1. */
int tok_alphabet_byte(uint32_t c);
/* Decodes a byte-level token to bytes. Returns false if a character is not in the alphabet. out has room for nbytes. */
bool tok_alphabet_bytes(const char *s, size_t nbytes, char *out, size_t *out_nbytes);

#define TOK_FAIL(code, ...) fsdpck_error_set(err, code, t->name, __VA_ARGS__)

#endif
