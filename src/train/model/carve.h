/* SPDX-License-Identifier: Apache-2.0 */
/* One piece of memory, cut up by the same lines when it is only counted and when it is there. Must not know what for. */
#ifndef TRAIN_CARVE_H
#define TRAIN_CARVE_H

#include <stddef.h>

#include <kernels/types.h>

struct carver {
    char *base; /* NULL: only counting */
    size_t at;
};

/* Each piece begins a cache line of its own. */
static inline void *carve(struct carver *v, size_t nbytes)
{
    void *p = v->base ? v->base + v->at : NULL;
    v->at += (nbytes + 63) / 64 * 64;
    return p;
}

static inline float *carve_floats(struct carver *v, int64_t nelem)
{
    return (float *)carve(v, (size_t)nelem * sizeof(float));
}

static inline int32_t *carve_ints(struct carver *v, int64_t nelem)
{
    return (int32_t *)carve(v, (size_t)nelem * sizeof(int32_t));
}

/* Activations. */
static inline void *carve_acts(struct carver *v, enum kern_dtype dtype, int64_t nelem)
{
    return carve(v, (size_t)(nelem * kern_dtype_bytes(dtype)));
}

#endif
