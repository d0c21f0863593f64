/* SPDX-License-Identifier: Apache-2.0 */
/* Dropout's mask from Philox, four numbers a block. Compiled once for each instruction set. */
#include "cpu/simd/table.h"
#include "cpu/simd/vec.h"

/* A 64-bit lane holds a 32-bit word of a block, because the product of two words needs 64 bits. */
enum { LANES = VL / 2, BLOCKS = 2 * LANES };
typedef uint64_t vw __attribute__((vector_size(LANES * 8)));

/* Multiplies the low words of a by m, giving 64 bits each. */
INLINE vw wide_product(vw a, uint32_t m)
{
    const vw factor = (vw){ 0 } + m;
#if defined(__AVX512F__)
    return (vw)_mm512_mul_epu32((__m512i)a, (__m512i)factor);
#elif defined(__AVX2__)
    return (vw)_mm256_mul_epu32((__m256i)a, (__m256i)factor);
#elif defined(__x86_64__)
    return (vw)_mm_mul_epu32((__m128i)a, (__m128i)factor);
#else
    return (a & 0xffffffffu) * factor;
#endif
}

/* Draws the words of LANES blocks from block `first` on. The upper halves of the lanes are undefined. Computes the same
 * as kern_philox4x32. */
INLINE void draw(const struct kern_philox *rng, uint64_t first, vw c[4])
{
    uint32_t k0 = (uint32_t)rng->seed, k1 = (uint32_t)(rng->seed >> 32);
    vw index = (vw){ 0 } + first;
    for (int i = 0; i < LANES; i++)
        index[i] += (uint64_t)i;
    c[0] = index;
    c[1] = index >> 32;
    c[2] = (vw){ 0 } + rng->step;
    c[3] = (vw){ 0 } + rng->name;
    for (int round = 0; round < 10; round++) {
        vw a = wide_product(c[0], 0xD2511F53u), b = wide_product(c[2], 0xCD9E8D57u);
        c[0] = (b >> 32) ^ c[1] ^ k0;
        c[1] = b;
        c[2] = (a >> 32) ^ c[3] ^ k1;
        c[3] = a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

/* Dropout factors of the 4 · BLOCKS elements that start at block `first`. */
INLINE void factors(const struct kern_philox *rng, uint64_t first, float p, float keep, float out[4 * BLOCKS])
{
    for (int half = 0; half < BLOCKS; half += LANES) {
        vw c[4];
        uint64_t word[4][LANES];
        draw(rng, first + (uint64_t)half, c);
        memcpy(word, c, sizeof(word));
        for (int i = 0; i < LANES; i++)
            for (int j = 0; j < 4; j++)
                out[4 * (half + i) + j] = (float)(int32_t)((uint32_t)word[j][i] >> 8) * 0x1p-24f >= p ? keep : 0.0f;
    }
}

void SIMD_DROPOUT(float *y, const float *x, float p, float keep, const struct kern_philox *rng, uint64_t index,
                  int64_t n)
{
    int64_t at = -(int64_t)(index % 4); /* element of the first word; negative if the strip starts inside its block */
    for (uint64_t first = index / 4; at < n; first += BLOCKS, at += 4 * BLOCKS) {
        float factor[4 * BLOCKS];
        factors(rng, first, p, keep, factor);
        int64_t from = at < 0 ? -at : 0, to = n - at < 4 * BLOCKS ? n - at : 4 * BLOCKS;
        for (int64_t i = from; i < to; i++)
            y[at + i] = factor[i] != 0 ? x[at + i] * factor[i] : 0.0f; /* not x·0, which is NaN for an infinity */
    }
}
