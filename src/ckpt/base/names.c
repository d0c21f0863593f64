/* SPDX-License-Identifier: Apache-2.0 */
/* Name -> ordinal, by open addressing with linear probing. Stores pointers to the strings, not copies. */
#include "base/names.h"

#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

struct names_slot {
    const char *name; /* NULL: free */
    uint64_t hash;    /* stored, so that growing and most misses read no string */
    size_t ordinal;
};

/* The seed is the library's load address, so that a file cannot choose names that all collide. */
static uint64_t hash_of(const char *name)
{
    return XXH3_64bits_withSeed(name, strlen(name), (uint64_t)(uintptr_t)&fsdpck_names_add);
}

/* Returns the slot with the name, or the free one for it. There is always a free one. */
static struct names_slot *slot_of(const struct fsdpck_names *n, const char *name, uint64_t hash)
{
    for (size_t i = hash & (n->nslots - 1);; i = (i + 1) & (n->nslots - 1)) {
        struct names_slot *s = &n->slots[i];
        if (!s->name || (s->hash == hash && strcmp(s->name, name) == 0))
            return s;
    }
}

static int grow(struct fsdpck_names *n, struct fsdpck_error *err)
{
    size_t nslots = n->nslots == 0 ? 64 : n->nslots * 2; /* a power of two */
    struct fsdpck_names bigger = { calloc(nslots, sizeof *bigger.slots), nslots, n->count };
    if (!bigger.slots)
        return fsdpck_error_nomem(err, nslots * sizeof *bigger.slots);
    for (size_t i = 0; i < n->nslots; i++)
        if (n->slots[i].name)
            *slot_of(&bigger, n->slots[i].name, n->slots[i].hash) = n->slots[i];
    free(n->slots);
    *n = bigger;
    return 0;
}

int fsdpck_names_add(struct fsdpck_names *n, const char *name, size_t ordinal, size_t *old, struct fsdpck_error *err)
{
    if (n->count >= n->nslots / 2) {
        int rc = grow(n, err);
        if (rc)
            return rc;
    }
    uint64_t hash = hash_of(name);
    struct names_slot *s = slot_of(n, name, hash);
    if (s->name) {
        *old = s->ordinal;
        return 0;
    }
    *s = (struct names_slot){ name, hash, ordinal };
    n->count++;
    *old = SIZE_MAX;
    return 0;
}

size_t fsdpck_names_find(const struct fsdpck_names *n, const char *name)
{
    if (n->count == 0)
        return SIZE_MAX;
    const struct names_slot *s = slot_of(n, name, hash_of(name));
    return !s->name ? SIZE_MAX : s->ordinal;
}

void fsdpck_names_free(struct fsdpck_names *n)
{
    free(n->slots);
    *n = (struct fsdpck_names){ 0 };
}
