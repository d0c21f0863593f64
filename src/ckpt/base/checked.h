/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic on numbers from files: false if the result does not fit. */
#ifndef CKPT_CHECKED_H
#define CKPT_CHECKED_H

#include <stdbool.h>
#include <stdint.h>

static inline bool checked_add(uint64_t a, uint64_t b, uint64_t *sum)
{
    return !__builtin_add_overflow(a, b, sum);
}
static inline bool checked_mul(uint64_t a, uint64_t b, uint64_t *product)
{
    return !__builtin_mul_overflow(a, b, product);
}

/* Computes the product of a shape ((ndim) sizes), and of it and element_nbytes. Any zero gives 0, even if the other
 * factors would overflow. */
static inline bool checked_shape(const uint64_t *shape, uint32_t ndim, uint64_t element_nbytes, uint64_t *nelem,
                                 uint64_t *nbytes)
{
    *nelem = 1;
    for (uint32_t d = 0; d < ndim; d++)
        if (shape[d] == 0) {
            *nelem = *nbytes = 0;
            return true;
        }
    for (uint32_t d = 0; d < ndim; d++)
        if (!checked_mul(*nelem, shape[d], nelem))
            return false;
    /* Other code adds offsets to these products, so they must not reach the sign bit. */
    return checked_mul(*nelem, element_nbytes, nbytes) && *nbytes <= INT64_MAX;
}

#endif
