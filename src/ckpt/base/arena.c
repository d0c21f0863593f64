/* SPDX-License-Identifier: Apache-2.0 */
/* Memory in blocks, freed all at once. */
#include "base/arena.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"

enum { ALIGNMENT = 16, FIRST_BLOCK = 4096, LARGEST_BLOCK = 1 << 20 };

struct arena_block {
    struct arena_block *before;
    size_t nbytes, used;
    _Alignas(ALIGNMENT) unsigned char data[];
};

static struct arena_block *new_block(size_t nbytes, struct fsdpck_error *err)
{
    struct arena_block *b = nbytes > SIZE_MAX - sizeof *b ? NULL : calloc(1, sizeof *b + nbytes);
    if (!b)
        fsdpck_error_nomem(err, nbytes);
    else
        b->nbytes = nbytes;
    return b;
}

/* A request that would waste much of a common block gets its own block, behind the one in use. */
static struct arena_block *add_block(struct fsdpck_arena *a, size_t nbytes, struct fsdpck_error *err)
{
    size_t common = !a->last ? FIRST_BLOCK : a->last->nbytes * 2;
    if (common > LARGEST_BLOCK)
        common = LARGEST_BLOCK;
    bool own = nbytes > common / 4;
    struct arena_block *b = new_block(own ? nbytes : common, err);
    if (!b)
        return NULL;
    if (own && a->last) {
        b->before = a->last->before;
        a->last->before = b;
    } else {
        b->before = a->last;
        a->last = b;
    }
    return b;
}

void *fsdpck_arena_alloc(struct fsdpck_arena *a, size_t nbytes, struct fsdpck_error *err)
{
    if (nbytes > SIZE_MAX - ALIGNMENT) {
        fsdpck_error_nomem(err, nbytes);
        return NULL;
    }
    size_t rounded = (nbytes + (nbytes == 0) + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1);
    struct arena_block *b = a->last;
    if (!b || b->nbytes - b->used < rounded)
        b = add_block(a, rounded, err);
    if (!b)
        return NULL;
    void *p = b->data + b->used;
    b->used += rounded;
    a->nbytes += rounded;
    return p;
}

void *fsdpck_arena_array(struct fsdpck_arena *a, size_t count, size_t nbytes, struct fsdpck_error *err)
{
    uint64_t total;
    if (!checked_mul(count, nbytes, &total) || total > SIZE_MAX) {
        fsdpck_error_nomem(err, SIZE_MAX);
        return NULL;
    }
    return fsdpck_arena_alloc(a, (size_t)total, err);
}

char *fsdpck_arena_strndup(struct fsdpck_arena *a, const char *s, size_t nbytes, struct fsdpck_error *err)
{
    char *copy = nbytes == SIZE_MAX ? NULL : fsdpck_arena_alloc(a, nbytes + 1, err);
    if (copy && nbytes > 0)
        memcpy(copy, s, nbytes);
    return copy;
}

void fsdpck_arena_free(struct fsdpck_arena *a)
{
    while (a->last) {
        struct arena_block *b = a->last;
        a->last = b->before;
        free(b);
    }
    a->nbytes = 0;
}
