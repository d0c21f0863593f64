/* SPDX-License-Identifier: Apache-2.0 */
/* Eight rows by thirty-two columns stay in registers during the loop over k. The columns of R are packed first: rows of
 * R are often a power of two apart, and would then compete for the same few lines of the first-level cache. The
 * compiler makes the vectors: the same code is built for AVX-512, AVX2 with FMA, and the baseline of the machine. */
#include "lora/product.h"

#include <stdbool.h>
#include <string.h>

enum { LANE = 16, WIDTH = 2 * LANE, HEIGHT = 8, PACKED_RANK = 128 };
typedef float lane __attribute__((vector_size(LANE * sizeof(float))));
typedef lane loose_lane __attribute__((aligned(sizeof(float)), may_alias)); /* as it lies in memory */

/* height is a constant after inlining; step: floats from one row of right to the next. Loops are unrolled by name,
 * because the sums must not be an array in memory. */
static inline __attribute__((always_inline)) void strip(float *values, uint64_t ld, const float *left,
                                                        const float *right, uint64_t rank, uint64_t step, int height,
                                                        float scale)
{
    lane low[HEIGHT], high[HEIGHT];
#pragma GCC unroll 8
    for (int i = 0; i < height; i++)
        low[i] = high[i] = (lane){ 0 };
    for (uint64_t k = 0; k < rank; k++) {
        const loose_lane *v = (const loose_lane *)(right + k * step);
        lane a = v[0], b = v[1];
#pragma GCC unroll 8
        for (int i = 0; i < height; i++) {
            low[i] += left[(uint64_t)i * rank + k] * a;
            high[i] += left[(uint64_t)i * rank + k] * b;
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < height; i++) {
        loose_lane *v = (loose_lane *)(values + (uint64_t)i * ld);
        v[0] += scale * low[i];
        v[1] += scale * high[i];
    }
}

/* WIDTH columns of all rows. */
static inline __attribute__((always_inline)) void panel(float *values, uint64_t ld, const float *left,
                                                        const float *right, uint64_t rank, uint64_t step,
                                                        uint64_t nrows, float scale)
{
    uint64_t i = 0;
    for (; i + HEIGHT <= nrows; i += HEIGHT)
        strip(values + i * ld, ld, left + i * rank, right, rank, step, HEIGHT, scale);
    for (; i < nrows; i++)
        strip(values + i * ld, ld, left + i * rank, right, rank, step, 1, scale);
}

static inline __attribute__((always_inline)) void tile(float *values, uint64_t ld, const float *left,
                                                       const float *right, uint64_t rank, uint64_t ncol, uint64_t nrows,
                                                       uint64_t ncols, float scale)
{
    float packed[PACKED_RANK * WIDTH];
    bool pack = rank <= PACKED_RANK && nrows >= HEIGHT;
    uint64_t wide = ncols / WIDTH * WIDTH;
    for (uint64_t j = 0; j < wide; j += WIDTH) {
        for (uint64_t k = 0; pack && k < rank; k++)
            memcpy(packed + k * WIDTH, right + k * ncol + j, WIDTH * sizeof *packed);
        if (pack)
            panel(values + j, ld, left, packed, rank, WIDTH, nrows, scale);
        else
            panel(values + j, ld, left, right + j, rank, ncol, nrows, scale);
    }
    for (uint64_t i = 0; i < nrows; i++)
        for (uint64_t j = wide; j < ncols; j++) {
            float sum = 0;
            for (uint64_t k = 0; k < rank; k++)
                sum += left[i * rank + k] * right[k * ncol + j];
            values[i * ld + j] += scale * sum;
        }
}

typedef void tile_fn(float *, uint64_t, const float *, const float *, uint64_t, uint64_t, uint64_t, uint64_t, float);

static void tile_plain(float *values, uint64_t ld, const float *left, const float *right, uint64_t rank, uint64_t ncol,
                       uint64_t nrows, uint64_t ncols, float scale)
{
    tile(values, ld, left, right, rank, ncol, nrows, ncols, scale);
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static void tile_avx2(float *values, uint64_t ld, const float *left,
                                                          const float *right, uint64_t rank, uint64_t ncol,
                                                          uint64_t nrows, uint64_t ncols, float scale)
{
    tile(values, ld, left, right, rank, ncol, nrows, ncols, scale);
}

__attribute__((target("avx512f,fma"))) static void tile_avx512(float *values, uint64_t ld, const float *left,
                                                               const float *right, uint64_t rank, uint64_t ncol,
                                                               uint64_t nrows, uint64_t ncols, float scale)
{
    tile(values, ld, left, right, rank, ncol, nrows, ncols, scale);
}

static tile_fn *best_tile(void)
{
    if (__builtin_cpu_supports("avx512f"))
        return tile_avx512;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? tile_avx2 : tile_plain;
}
#else
static tile_fn *best_tile(void)
{
    return tile_plain;
}
#endif

void fsdpck_product_add(float *values, uint64_t ld, const float *left, const float *right, uint64_t rank, uint64_t ncol,
                        uint64_t nrows, uint64_t ncols, float scale)
{
    best_tile()(values, ld, left, right, rank, ncol, nrows, ncols, scale);
}
