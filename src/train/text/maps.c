/* SPDX-License-Identifier: Apache-2.0 */
/* Small containers of the tokenizer. */
#include "text/maps.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

bool text_add(struct text *t, const char *s, size_t nbytes, struct span *out)
{
    if (nbytes >= UINT32_MAX - t->nbytes || !grow((void **)&t->s, &t->capacity, t->nbytes + nbytes + 1, 1))
        return false;
    *out = (struct span){ (uint32_t)t->nbytes, (uint32_t)nbytes };
    if (nbytes)
        memcpy(t->s + t->nbytes, s, nbytes);
    t->s[t->nbytes + nbytes] = '\0';
    t->nbytes += nbytes + 1;
    return true;
}

static size_t table_size(size_t count)
{
    size_t n = 16;
    while (n < 2 * count)
        n *= 2;
    return n;
}

bool string_map_reserve(struct string_map *m, size_t count)
{
    if (m->entries && 2 * count <= m->mask + 1)
        return true;
    struct string_map larger = { .mask = table_size(count) - 1, .count = m->count };
    larger.entries = malloc((larger.mask + 1) * sizeof *larger.entries);
    if (!larger.entries)
        return false;
    for (size_t i = 0; i <= larger.mask; i++)
        larger.entries[i].key = NO_SPAN;
    for (size_t i = 0; m->entries && i <= m->mask; i++) {
        size_t j = m->entries[i].hash & larger.mask;
        while (m->entries[i].key.nbytes != UINT32_MAX && larger.entries[j].key.nbytes != UINT32_MAX)
            j = (j + 1) & larger.mask;
        if (m->entries[i].key.nbytes != UINT32_MAX)
            larger.entries[j] = m->entries[i];
    }
    free(m->entries);
    *m = larger;
    return true;
}

static struct string_entry *find(const struct string_map *m, const char *base, const char *s, size_t nbytes,
                                 uint32_t hash)
{
    for (size_t i = hash & m->mask;; i = (i + 1) & m->mask) {
        struct string_entry *e = &m->entries[i];
        if (e->key.nbytes == UINT32_MAX ||
            (e->hash == hash && e->key.nbytes == nbytes && memcmp(base + e->key.at, s, nbytes) == 0))
            return e;
    }
}

void string_map_put(struct string_map *m, const char *base, struct span key, uint32_t value)
{
    uint32_t hash = (uint32_t)XXH3_64bits(base + key.at, key.nbytes);
    struct string_entry *e = find(m, base, base + key.at, key.nbytes, hash);
    m->count += e->key.nbytes == UINT32_MAX;
    *e = (struct string_entry){ .key = key, .hash = hash, .value = value };
}

bool string_map_get(const struct string_map *m, const char *base, const char *s, size_t nbytes, uint32_t *value)
{
    if (!m->entries)
        return false;
    const struct string_entry *e = find(m, base, s, nbytes, (uint32_t)XXH3_64bits(s, nbytes));
    if (e->key.nbytes == UINT32_MAX)
        return false;
    *value = e->value;
    return true;
}

bool pair_map_reserve(struct pair_map *m, size_t count)
{
    m->mask = table_size(count) - 1;
    m->entries = malloc((m->mask + 1) * sizeof *m->entries);
    for (size_t i = 0; m->entries && i <= m->mask; i++)
        m->entries[i] = (struct pair_entry){ .key = UINT64_MAX };
    return m->entries != NULL;
}

void pair_map_put(struct pair_map *m, uint32_t a, uint32_t b, uint32_t rank, uint32_t id)
{
    uint64_t key = (uint64_t)a << 32 | b, h = key * 0x9e3779b97f4a7c15ull;
    size_t i = (h ^ h >> 32) & m->mask;
    while (m->entries[i].key != UINT64_MAX && m->entries[i].key != key)
        i = (i + 1) & m->mask;
    m->entries[i] = (struct pair_entry){ .key = key, .rank = rank, .id = id };
}

static uint32_t child_of(const struct trie *t, uint32_t node, unsigned char byte)
{
    if (node == 0)
        return t->first[byte];
    uint32_t c = t->nodes[node].child;
    while (c && t->nodes[c].byte != byte)
        c = t->nodes[c].sibling;
    return c;
}

bool trie_add(struct trie *t, const char *s, size_t nbytes, uint32_t value)
{
    uint32_t node = 0;
    for (size_t i = 0; i < nbytes; i++) {
        unsigned char byte = (unsigned char)s[i];
        uint32_t child = child_of(t, node, byte);
        if (!child) {
            if (!grow((void **)&t->nodes, &t->capacity, t->count + 2, sizeof *t->nodes))
                return false;
            t->count += t->count == 0; /* the root */
            child = (uint32_t)t->count++;
            t->nodes[child] =
                (struct trie_node){ .sibling = node ? t->nodes[node].child : 0, .value = UINT32_MAX, .byte = byte };
            *(node ? &t->nodes[node].child : &t->first[byte]) = child;
        }
        node = child;
    }
    if (node && t->nodes[node].value == UINT32_MAX)
        t->nodes[node].value = value;
    return true;
}

bool trie_find(const struct trie *t, const char *s, size_t nbytes, size_t at, size_t *begin, size_t *end,
               uint32_t *value)
{
    for (; at < nbytes; at++) {
        uint32_t node = t->first[(unsigned char)s[at]];
        bool found = false;
        for (size_t i = at + 1; node; node = i < nbytes ? child_of(t, node, (unsigned char)s[i]) : 0, i++) {
            if (t->nodes[node].value != UINT32_MAX) {
                found = true;
                *end = i;
                *value = t->nodes[node].value;
            }
        }
        if (found) {
            *begin = at;
            return true;
        }
    }
    return false;
}
