/* SPDX-License-Identifier: Apache-2.0 */
/* Dropout factor of one element, computed directly from the definition: counter, block, word, uniform number. */
#ifndef PHILOX_REF_H
#define PHILOX_REF_H

#include <kernels/random.h>

static inline double uniform_ref(const struct kern_philox *rng, uint64_t index)
{
    const uint32_t counter[4] = { (uint32_t)(index / 4), (uint32_t)(index / 4 >> 32), rng->step, rng->name };
    const uint32_t key[2] = { (uint32_t)rng->seed, (uint32_t)(rng->seed >> 32) };
    uint32_t out[4];
    kern_philox4x32(counter, key, out);
    return (double)(out[index % 4] >> 8) * 0x1p-24;
}

static inline double dropout_ref(const struct kern_dropout *d, int64_t row, int64_t col)
{
    if (d->p <= 0)
        return 1;
    const struct kern_dropout now = kern_dropout_now(*d);
    uint64_t index = (uint64_t)(now.token0 + row) * (uint64_t)now.width + (uint64_t)col;
    return uniform_ref(&now.rng, index) >= (double)d->p ? 1 / (1 - (double)d->p) : 0;
}

#endif
