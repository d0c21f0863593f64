/* SPDX-License-Identifier: Apache-2.0 */
/* The state of one encoding thread: pieces of text, buffers, the word cache. */
#ifndef TRAIN_TEXT_TOK_WORK_H
#define TRAIN_TEXT_TOK_WORK_H

#include "text/tokenizer/impl.h"

/* A part of the text, possibly modified. */
struct piece {
    const char *s;
    size_t n;
    uint32_t base;          /* offset of the piece in the text; valid while no step has added or removed bytes */
    const uint32_t *origin; /* (n) offset in the text of each byte's origin; NULL: base + i */
};

struct piece_buffer {
    char *s;
    uint32_t *origin;
    size_t n, capacity, origin_capacity;
};

/* A cached word. Each id: 24 bits of id, 8 bits of its offset in the word. */
enum { CACHE_KEY = 32, CACHE_IDS = 7, CACHE_SLOTS = 1 << 16 };
struct cached_word {
    char key[CACHE_KEY];
    uint8_t key_nbytes, count; /* key_nbytes 0: empty slot */
    uint32_t ids[CACHE_IDS];
};

struct symbol {
    uint32_t id, begin;
    uint32_t previous, next; /* linked list in long words; UINT32_MAX: none */
};

struct encoder {
    const struct tokenizer *t;
    struct cached_word *cache; /* (CACHE_SLOTS) */
    struct symbol *symbols;
    uint64_t *heap;
    size_t symbols_capacity, heap_capacity, heap_count;
    struct piece_buffer normal[2], split[TOK_MAX_STEPS];
    struct split_work *regex[TOK_MAX_STEPS];
    bool begins; /* record the offsets of the tokens */
};

/* Bytes from … to of p. */
static inline struct piece piece_part(const struct piece *p, size_t from, size_t to)
{
    return (struct piece){ p->s + from, to - from, (uint32_t)(p->base + from), p->origin ? p->origin + from : NULL };
}

/* Appends nbytes whose origin is byte `origin` of the text. */
int piece_buffer_add(struct piece_buffer *b, const char *s, size_t nbytes, uint32_t origin, bool begins,
                     struct fsdpck_error *err);
void piece_buffer_free(struct piece_buffer *b);
/* Origin of byte i of p; i == n: the offset after the last byte. */
static inline uint32_t piece_origin(const struct piece *p, size_t i)
{
    return !p->origin ? (uint32_t)(p->base + i) : i < p->n ? p->origin[i] : p->n ? p->origin[p->n - 1] + 1 : p->base;
}

/* Applies the normaliser's steps to *p. If a step changes it, *p points into one of the buffers. */
int tok_normalize(const struct tokenizer *t, struct piece *p, struct piece_buffer buffers[2], bool begins,
                  struct fsdpck_error *err);
/* Writes p to b with each `from` replaced by `to`. */
int piece_replace(const struct piece *p, const char *from, size_t from_nbytes, const char *to, size_t to_nbytes,
                  bool begins, struct piece_buffer *b, struct fsdpck_error *err);
struct piece piece_of(const struct piece_buffer *b, uint32_t base, bool begins);

/* Merges one word (or a text without splits) and appends its tokens. */
int bpe_word(struct encoder *e, const struct piece *word, struct token_list *out, struct fsdpck_error *err);
/* Makes room for n more tokens. */
int token_list_room(struct token_list *list, size_t n, bool begins, struct fsdpck_error *err);

#endif
