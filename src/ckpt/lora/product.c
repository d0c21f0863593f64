/* Four rows by sixteen columns stay in registers while k runs; a tile's part of R stays in the first cache. The vectors are the compiler's: the same code
 * is built for AVX-512, AVX2 with FMA, and whatever the machine at least has. */
#include "lora/product.h"

#include <string.h>

enum { WIDTH = 16, HEIGHT = 4 };
typedef float lane __attribute__((vector_size(WIDTH * sizeof(float))));

/* height is a constant where this is inlined. */
static inline __attribute__((always_inline)) void strip(float *values, uint64_t ld, const float *left, const float *right, uint64_t rank, uint64_t ncol,
                                                        int height, float scale)
{
    lane sum[HEIGHT] = { 0 }, v;
    for (uint64_t k = 0; k < rank; k++) {
        memcpy(&v, right + k * ncol, sizeof v);
        for (int i = 0; i < height; i++)
            sum[i] += left[(uint64_t)i * rank + k] * v;
    }
    for (int i = 0; i < height; i++) {
        memcpy(&v, values + (uint64_t)i * ld, sizeof v);
        v += scale * sum[i];
        memcpy(values + (uint64_t)i * ld, &v, sizeof v);
    }
}

static inline __attribute__((always_inline)) void tile(float *values, uint64_t ld, const float *left, const float *right, uint64_t rank, uint64_t ncol,
                                                       uint64_t nrows, uint64_t ncols, float scale)
{
    uint64_t wide = ncols / WIDTH * WIDTH, i = 0;
    for (; i + HEIGHT <= nrows; i += HEIGHT)
        for (uint64_t j = 0; j < wide; j += WIDTH)
            strip(values + i * ld + j, ld, left + i * rank, right + j, rank, ncol, HEIGHT, scale);
    for (; i < nrows; i++)
        for (uint64_t j = 0; j < wide; j += WIDTH)
            strip(values + i * ld + j, ld, left + i * rank, right + j, rank, ncol, 1, scale);
    for (i = 0; i < nrows; i++)
        for (uint64_t j = wide; j < ncols; j++) {
            float sum = 0;
            for (uint64_t k = 0; k < rank; k++)
                sum += left[i * rank + k] * right[k * ncol + j];
            values[i * ld + j] += scale * sum;
        }
}

typedef void tile_fn(float *, uint64_t, const float *, const float *, uint64_t, uint64_t, uint64_t, uint64_t, float);

static void tile_plain(float *values, uint64_t ld, const float *left, const float *right, uint64_t rank, uint64_t ncol, uint64_t nrows, uint64_t ncols,
                       float scale)
{
    tile(values, ld, left, right, rank, ncol, nrows, ncols, scale);
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static void tile_avx2(float *values, uint64_t ld, const float *left, const float *right, uint64_t rank, uint64_t ncol,
                                                          uint64_t nrows, uint64_t ncols, float scale)
{
    tile(values, ld, left, right, rank, ncol, nrows, ncols, scale);
}

__attribute__((target("avx512f,fma"))) static void tile_avx512(float *values, uint64_t ld, const float *left, const float *right, uint64_t rank,
                                                               uint64_t ncol, uint64_t nrows, uint64_t ncols, float scale)
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
static tile_fn *best_tile(void) { return tile_plain; }
#endif

void fsdpck_product_add(float *values, uint64_t ld, const float *left, const float *right, uint64_t rank, uint64_t ncol, uint64_t nrows, uint64_t ncols,
                        float scale)
{
    best_tile()(values, ld, left, right, rank, ncol, nrows, ncols, scale);
}
