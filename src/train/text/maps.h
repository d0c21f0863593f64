/* SPDX-License-Identifier: Apache-2.0 */
/* Small containers of the tokenizer: a growing text, hash maps from strings and from pairs to numbers, a trie for the
 * longest match. They know nothing of tokens. */
#ifndef TRAIN_TEXT_MAPS_H
#define TRAIN_TEXT_MAPS_H

#include "arrays/grow.h"

#include <stdint.h>

/* Strings in one buffer, each followed by a NUL. */
struct text {
    char *s;
    size_t nbytes, capacity;
};
struct span {
    uint32_t at, nbytes;
};
#define NO_SPAN ((struct span){ 0, UINT32_MAX })
bool text_add(struct text *t, const char *s, size_t nbytes,
              struct span *out); /* false: out of memory, or the text would exceed 4 GiB */

/* A hash table with open addressing. The keys lie in a text; the caller passes its base. */
struct string_map {
    struct string_entry {
        struct span key;
        uint32_t hash, value;
    } * entries; /* (mask + 1) */
    size_t mask, count;
};
bool string_map_reserve(struct string_map *m, size_t count);
/* Adds or replaces an entry. string_map_reserve() must have made room. */
void string_map_put(struct string_map *m, const char *base, struct span key, uint32_t value);
bool string_map_get(const struct string_map *m, const char *base, const char *s, size_t nbytes, uint32_t *value);

/* Maps a pair of symbols to its merge. */
struct pair_map {
    struct pair_entry {
        uint64_t key;
        uint32_t rank, id;
    } * entries;
    size_t mask;
};
bool pair_map_reserve(struct pair_map *m, size_t count);
void pair_map_put(struct pair_map *m, uint32_t a, uint32_t b, uint32_t rank, uint32_t id);

static inline const struct pair_entry *pair_map_get(const struct pair_map *m, uint32_t a, uint32_t b)
{
    uint64_t key = (uint64_t)a << 32 | b, h = key * 0x9e3779b97f4a7c15ull;
    for (size_t i = (h ^ h >> 32) & m->mask;; i = (i + 1) & m->mask) {
        if (m->entries[i].key == key)
            return &m->entries[i];
        if (m->entries[i].key == UINT64_MAX)
            return NULL;
    }
}

/* A trie of patterns by bytes; node 0 is the root. */
struct trie {
    struct trie_node {
        uint32_t child, sibling; /* 0: none */
        uint32_t value;          /* UINT32_MAX: no pattern ends here */
        unsigned char byte;
    } * nodes;
    size_t count, capacity;
    uint32_t first[256]; /* children of the root; 0: none */
};
bool trie_add(struct trie *t, const char *s, size_t nbytes, uint32_t value); /* of equal patterns, keeps the first */
/* Finds the leftmost match at or after `at`, and of those the longest. */
bool trie_find(const struct trie *t, const char *s, size_t nbytes, size_t at, size_t *begin, size_t *end,
               uint32_t *value);

#endif
