/* SPDX-License-Identifier: Apache-2.0 */
/* Internals of a tokenizer: its reader fills them, its encoder and decoder use them. */
#ifndef TRAIN_TEXT_TOK_IMPL_H
#define TRAIN_TEXT_TOK_IMPL_H

#include <train/tokenizer.h>

#include "text/maps.h"
#include "text/tokenizer/unicode.h"

struct json_t;

enum {
    TOK_MAX_FILE = 1 << 28,
    TOK_MAX_TEXT = 1 << 28,
    TOK_MAX_ID = 1 << 24, /* ids are packed with 8 bits more in the cache of words */
    TOK_MAX_STEPS = 8,
};
#define TOK_NONE UINT32_MAX

/* An added token: found in the text before anything else is done to it. */
struct added {
    uint32_t id;
    struct span pattern; /* in t->strings: the content, normalized where that is asked for */
    bool single_word, lstrip, rstrip, special, normalized;
};

enum normalize_kind {
    NORMALIZE_PREPEND,
    NORMALIZE_REPLACE,
    NORMALIZE_NFC,
    NORMALIZE_NFD,
    NORMALIZE_NFKD
}; /* NFKC is NFKD, then NFC */
struct normalize_step {
    enum normalize_kind kind;
    struct span from, to; /* REPLACE; PREPEND: to */
};

/* The length of the first word of s (n > 0 bytes), or 0 with err set. */
struct split_step;
typedef size_t (*split_scan_fn)(const uint8_t *bits, const char *s, size_t n);

enum split_kind { SPLIT_SCAN, SPLIT_REGEX, SPLIT_DIGITS, SPLIT_METASPACE, SPLIT_PREFIX_SPACE };
struct split_step {
    enum split_kind kind;
    split_scan_fn scan;        /* SCAN */
    struct split_regex *regex; /* REGEX. Owned */
    bool individual;           /* DIGITS: each alone; METASPACE: split into words */
    int prepend;               /* METASPACE: enum metaspace_prepend */
    struct span replacement;   /* METASPACE: one character */
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
    struct span from, to; /* REPLACE; STRIP and METASPACE: from is one character */
    uint32_t start, stop; /* STRIP */
    bool keeps_first;     /* METASPACE: prepend_scheme never */
};

struct id_list {
    uint32_t *ids;
    size_t count, capacity;
};

struct tokenizer {
    char *name;
    uint64_t fingerprint;
    uint8_t *bits;           /* (UNICODE_NPOINTS) */
    struct text strings;     /* every string of the file that is kept */
    struct span *tokens;     /* (nids) in strings; NO_SPAN: no such id */
    uint8_t *special;        /* (nids) */
    uint32_t nids, nmodel;   /* nmodel: tokens of the model, without added ones */
    struct string_map ids;   /* token as in the file → id; the model's, then added ones */
    struct string_map words; /* byte-level: token as bytes → id */
    struct pair_map merges;
    uint32_t byte_ids[256]; /* byte-level: the symbol of a byte; else of an ASCII character, TOK_NONE: none */
    uint32_t fallback[256]; /* "<0x41>" */
    uint32_t unk;
    bool byte_level, ignore_merges, byte_fallback, fuse_unk;
    bool breaks_at_space; /* no merge goes across the boundary of anything and "▁": words can be merged one by one */
    struct added *added;
    size_t nadded;
    struct trie raw, normalized; /* added tokens, by their index */
    struct normalize_step normalize[TOK_MAX_STEPS + 1];
    struct split_step split[TOK_MAX_STEPS];
    struct decode_step decode[TOK_MAX_STEPS];
    size_t nnormalize, nsplit, ndecode;
    bool has_decoder;
    struct id_list prefix, suffix;
};

/* Readers of the parts of tokenizer.json, in this order. */
int tok_read_steps(struct tokenizer *t, struct json_t *root, struct fsdpck_error *err);
int tok_read_model(struct tokenizer *t, struct json_t *model, struct fsdpck_error *err);
int tok_read_added(struct tokenizer *t, struct json_t *list, struct fsdpck_error *err);
int tok_read_post(struct tokenizer *t, struct json_t *post, struct fsdpck_error *err);
int tok_read_decoder(struct tokenizer *t, struct json_t *decoder, struct fsdpck_error *err);

/* GPT-2's alphabet: the byte that a character of a byte-level token stands for, or -1. */
int tok_alphabet_byte(uint32_t c);
/* The bytes of a byte-level token; false where a character is none of the alphabet. out: room for nbytes. */
bool tok_alphabet_bytes(const char *s, size_t nbytes, char *out, size_t *out_nbytes);

#define TOK_FAIL(code, ...) fsdpck_error_set(err, code, t->name, __VA_ARGS__)

#endif
