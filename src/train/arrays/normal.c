/* SPDX-License-Identifier: Apache-2.0 */
#include "arrays/normal.h"

#include <math.h>

/* Two words of a block of Philox give two elements. */
void normal_draw(float *dst, uint64_t nelem, const struct kern_philox *rng, uint64_t index0)
{
    const uint32_t key[2] = { (uint32_t)rng->seed, (uint32_t)(rng->seed >> 32) };
    for (uint64_t i = 0; i < nelem; i++) {
        uint64_t index = index0 + i, block = index / 4;
        const uint32_t counter[4] = { (uint32_t)block, (uint32_t)(block >> 32), rng->step, rng->name };
        uint32_t u[4], *pair = u + index % 4 / 2 * 2;
        kern_philox4x32(counter, key, u);
        double radius = sqrt(-2 * log((pair[0] + 1.0) / 4294967296.0)), angle = 2 * M_PI * pair[1] / 4294967296.0;
        dst[i] = (float)(radius * (index % 2 ? sin(angle) : cos(angle)));
    }
}
