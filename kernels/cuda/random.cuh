/* SPDX-License-Identifier: Apache-2.0 */
/* Dropout masks, computed where they are applied. The random numbers are those of kernels/random.h. */
#ifndef CUDA_RANDOM_CUH
#define CUDA_RANDOM_CUH

#include "common/philox.h"
#include "cuda/vec.cuh"

#include <kernels/random.h>

/* The four words of a Philox block. */
__device__ __forceinline__ void draw_block(const struct kern_philox &rng, uint64_t block, uint32_t out[4])
{
    out[0] = (uint32_t)block;
    out[1] = (uint32_t)(block >> 32);
    out[2] = rng.step;
    out[3] = rng.name;
    philox_block(out, (uint32_t)rng.seed, (uint32_t)(rng.seed >> 32));
}

__device__ __forceinline__ float uniform_of(uint32_t word)
{
    return (float)(word >> 8) * 0x1p-24f;
}

/* Eight uniform numbers from `index` on. They take three blocks unless index is a multiple of 4. The four-way choice
 * avoids indexing registers at run time. */
__device__ __forceinline__ f8 uniform8(const struct kern_philox &rng, uint64_t index)
{
    uint32_t word[12] = {};
    const unsigned shift = (unsigned)(index % 4);
    draw_block(rng, index / 4, word);
    draw_block(rng, index / 4 + 1, word + 4);
    if (shift)
        draw_block(rng, index / 4 + 2, word + 8);
    f8 u;
#pragma unroll
    for (int i = 0; i < WIDTH; i++)
        u.v[i] = uniform_of(shift == 0 ? word[i] : shift == 1 ? word[i + 1] : shift == 2 ? word[i + 2] : word[i + 3]);
    return u;
}

/* The uniform numbers of eight elements; an element is dropped if its number is below p. */
__device__ __forceinline__ f8 dropout8(const struct kern_dropout &d, int64_t row, int64_t col)
{
    struct kern_philox rng = d.rng;
    int64_t token = d.token0 + row;
    if (d.rng_offset) {
        rng.step += d.rng_offset->step;
        token += d.rng_offset->token0;
    }
    return uniform8(rng, (uint64_t)token * (uint64_t)d.width + (uint64_t)col);
}

/* y = x · keep, or 0 if dropped. (x · 0 would turn an infinity into NaN.) */
struct dropout_op {
    struct kern_mat y;
    struct kern_cmat x;
    struct kern_dropout d;
    float keep;
    template <types K> __device__ void at(int64_t row, int64_t col, int n, bool whole) const
    {
        const f8 u = dropout8(d, row, col);
        f8 v = load8<K>(x, row, col, n, whole);
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            v.v[i] = u.v[i] >= d.p ? v.v[i] * keep : 0.0f;
        store8<K>(y, row, col, n, whole, v);
    }
};

#endif
