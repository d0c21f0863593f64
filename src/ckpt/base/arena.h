/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that is freed all at once: names, shapes and tables of a source. Not thread-safe. */
#ifndef CKPT_ARENA_H
#define CKPT_ARENA_H

#include <fsdpck/error.h>

struct fsdpck_arena {
    struct arena_block *last;
    size_t nbytes; /* allocated so far */
};

/* Zeroed, 16-byte aligned; NULL (and err filled) if out of memory. nbytes 0 gives a valid pointer. */
void *fsdpck_arena_alloc(struct fsdpck_arena *a, size_t nbytes, struct fsdpck_error *err);
/* Allocates count * nbytes, and checks for overflow. */
void *fsdpck_arena_array(struct fsdpck_arena *a, size_t count, size_t nbytes, struct fsdpck_error *err);
/* Returns a NUL-terminated copy. */
char *fsdpck_arena_strndup(struct fsdpck_arena *a, const char *s, size_t nbytes, struct fsdpck_error *err);
void fsdpck_arena_free(struct fsdpck_arena *a); /* leaves it empty and usable */

#endif
