/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that is released all at once: names, shapes and tables of a source. Not thread-safe. */
#ifndef CKPT_ARENA_H
#define CKPT_ARENA_H

#include <fsdpck/error.h>

struct fsdpck_arena {
    struct arena_block *last;
    size_t nbytes; /* handed out so far */
};

/* Zeroed, 16-byte aligned; NULL (and err filled) when memory is out. nbytes 0 gives a valid pointer. */
void *fsdpck_arena_alloc(struct fsdpck_arena *a, size_t nbytes, struct fsdpck_error *err);
/* count * nbytes, overflow checked. */
void *fsdpck_arena_array(struct fsdpck_arena *a, size_t count, size_t nbytes, struct fsdpck_error *err);
/* A NUL-terminated copy. */
char *fsdpck_arena_strndup(struct fsdpck_arena *a, const char *s, size_t nbytes, struct fsdpck_error *err);
void fsdpck_arena_free(struct fsdpck_arena *a); /* leaves it empty and usable */

#endif
