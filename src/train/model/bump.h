/* SPDX-License-Identifier: Apache-2.0 */
/* A bump allocator over one piece of memory. With base NULL it only counts, so that the same code computes the size and
 * the pointers. Must not know the purpose of the memory. */
#ifndef TRAIN_BUMP_H
#define TRAIN_BUMP_H

#include <stddef.h>

#include <kernels/types.h>

struct bump {
    char *base; /* NULL: count only */
    size_t at;
};

/* Each allocation starts at a cache line. */
static inline void *bump_alloc(struct bump *v, size_t nbytes)
{
    void *p = v->base ? v->base + v->at : NULL;
    v->at += (nbytes + 63) / 64 * 64;
    return p;
}

static inline float *bump_floats(struct bump *v, int64_t nelem)
{
    return (float *)bump_alloc(v, (size_t)nelem * sizeof(float));
}

static inline int32_t *bump_ints(struct bump *v, int64_t nelem)
{
    return (int32_t *)bump_alloc(v, (size_t)nelem * sizeof(int32_t));
}

/* Allocates activations. */
static inline void *bump_acts(struct bump *v, enum kern_dtype dtype, int64_t nelem)
{
    return bump_alloc(v, (size_t)(nelem * kern_dtype_bytes(dtype)));
}

#endif
