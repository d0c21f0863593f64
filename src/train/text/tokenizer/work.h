/* SPDX-License-Identifier: Apache-2.0 */
/* The state of one encoding thread: pieces of text, buffers, the cache of words. */
#ifndef TRAIN_TEXT_TOK_WORK_H
#define TRAIN_TEXT_TOK_WORK_H

#include "text/tokenizer/impl.h"

/* Some of the text, perhaps changed. */
struct piece {
    const char *s;
    size_t n;
    uint32_t base;          /* where it begins in the text, as long as nothing was put in or taken out before */
    const uint32_t *origin; /* (n) where each byte comes from in the text; NULL: base and on */
};

struct piece_buffer {
    char *s;
    uint32_t *origin;
    size_t n, capacity, origin_capacity;
};

/* A word that was merged before. ids: 24 bits of id, 8 bits of where in the word it begins. */
enum { CACHE_KEY = 32, CACHE_IDS = 7, CACHE_SLOTS = 1 << 16 };
struct cached_word {
    char key[CACHE_KEY];
    uint8_t key_nbytes, count; /* key_nbytes 0: free */
    uint32_t ids[CACHE_IDS];
};

struct symbol {
    uint32_t id, begin;
    uint32_t previous, next; /* in long words: UINT32_MAX: none */
};

struct encoder {
    const struct tokenizer *t;
    struct cached_word *cache; /* (CACHE_SLOTS) */
    struct symbol *symbols;
    uint64_t *heap;
    size_t symbols_capacity, heap_capacity, heap_count;
    struct piece_buffer normal[2], split[TOK_MAX_STEPS];
    struct split_work *regex[TOK_MAX_STEPS];
    bool begins; /* wanted */
};

/* The part of p from `from` to `to`. */
static inline struct piece piece_part(const struct piece *p, size_t from, size_t to)
{
    return (struct piece){ p->s + from, to - from, (uint32_t)(p->base + from), p->origin ? p->origin + from : NULL };
}

/* Adds nbytes that come from byte `origin` of the text. */
int piece_buffer_add(struct piece_buffer *b, const char *s, size_t nbytes, uint32_t origin, bool begins,
                     struct fsdpck_error *err);
void piece_buffer_free(struct piece_buffer *b);
/* Where byte i of p comes from; i == n: right behind the last. */
static inline uint32_t piece_origin(const struct piece *p, size_t i)
{
    return !p->origin ? (uint32_t)(p->base + i) : i < p->n ? p->origin[i] : p->n ? p->origin[p->n - 1] + 1 : p->base;
}

/* The normalizer's steps on *p, whose new bytes then lie in one of buffers. */
int tok_normalize(const struct tokenizer *t, struct piece *p, struct piece_buffer buffers[2], bool begins,
                  struct fsdpck_error *err);
/* p with every `from` replaced by `to`, into b. */
int piece_replace(const struct piece *p, const char *from, size_t from_nbytes, const char *to, size_t to_nbytes,
                  bool begins, struct piece_buffer *b, struct fsdpck_error *err);
struct piece piece_of(const struct piece_buffer *b, uint32_t base, bool begins);

/* Merges one word (or a text that is not split) and adds its tokens. */
int bpe_word(struct encoder *e, const struct piece *word, struct token_list *out, struct fsdpck_error *err);
/* Makes room for n more tokens. */
int token_list_room(struct token_list *list, size_t n, bool begins, struct fsdpck_error *err);

#endif
