/* SPDX-License-Identifier: Apache-2.0 */
/* See failing_malloc.h. Each wrapper only decides whether its call fails. */
#include "failing_malloc.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

#include <jansson.h>

static atomic_uint made, at = UINT_MAX;
static atomic_bool counting;

static bool fails(void)
{
    return atomic_load(&counting) && atomic_fetch_add(&made, 1) == atomic_load(&at);
}

void *__real_malloc(size_t nbytes);
void *__real_calloc(size_t n, size_t nbytes);
void *__real_realloc(void *p, size_t nbytes);
void *__real_aligned_alloc(size_t align, size_t nbytes);
char *__real_strdup(const char *s);
char *__real_strndup(const char *s, size_t n);
void *__wrap_malloc(size_t nbytes);
void *__wrap_calloc(size_t n, size_t nbytes);
void *__wrap_realloc(void *p, size_t nbytes);
void *__wrap_aligned_alloc(size_t align, size_t nbytes);
char *__wrap_strdup(const char *s);
char *__wrap_strndup(const char *s, size_t n);

void *__wrap_malloc(size_t nbytes)
{
    return fails() ? NULL : __real_malloc(nbytes);
}
void *__wrap_calloc(size_t n, size_t nbytes)
{
    return fails() ? NULL : __real_calloc(n, nbytes);
}
void *__wrap_realloc(void *p, size_t nbytes)
{
    return fails() ? NULL : __real_realloc(p, nbytes);
}
void *__wrap_aligned_alloc(size_t align, size_t nbytes)
{
    return fails() ? NULL : __real_aligned_alloc(align, nbytes);
}
char *__wrap_strdup(const char *s)
{
    return fails() ? NULL : __real_strdup(s);
}
char *__wrap_strndup(const char *s, size_t n)
{
    return fails() ? NULL : __real_strndup(s, n);
}

void failing_malloc_begin(unsigned fail_at)
{
    json_set_alloc_funcs(__wrap_malloc, free);
    atomic_store(&made, 0);
    atomic_store(&at, fail_at);
    atomic_store(&counting, true);
}

unsigned failing_malloc_end(void)
{
    atomic_store(&counting, false);
    return atomic_load(&made);
}
