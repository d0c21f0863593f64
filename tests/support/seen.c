/* SPDX-License-Identifier: Apache-2.0 */
/* A hash set with open addressing (seen.h). Knows nothing of the meaning of the digests. */
#include "seen.h"

#include <stdlib.h>

/* Slot of a digest, or the one for it. 0 means "free", so digest 0 is stored as 1. */
static uint64_t *place(const struct seen *s, uint64_t digest)
{
    size_t i = digest & (s->capacity - 1);
    while (s->digests[i] != 0 && s->digests[i] != digest)
        i = (i + 1) & (s->capacity - 1);
    return &s->digests[i];
}

bool seen_has(const struct seen *s, uint64_t digest)
{
    digest += digest == 0;
    return s->capacity > 0 && *place(s, digest) == digest;
}

static void grow(struct seen *s)
{
    struct seen old = *s;
    s->capacity = old.capacity > 0 ? 2 * old.capacity : 256;
    s->digests = calloc(s->capacity, sizeof *s->digests);
    if (s->digests == NULL)
        abort();
    for (size_t i = 0; i < old.capacity; i++)
        if (old.digests[i] != 0)
            *place(s, old.digests[i]) = old.digests[i];
    free(old.digests);
}

void seen_add(struct seen *s, uint64_t digest)
{
    digest += digest == 0;
    if (2 * s->count >= s->capacity)
        grow(s);
    if (seen_has(s, digest))
        return;
    *place(s, digest) = digest;
    s->count++;
}

void seen_forget(struct seen *s)
{
    free(s->digests);
    *s = (struct seen){ 0 };
}
