/* SPDX-License-Identifier: Apache-2.0 */
/* Codes of one group times its scale, rounded to bf16. Compiled once for each instruction set. */
#include "cpu/simd/table.h"
#include "cpu/simd/vec.h"

/* Rounds to nearest even. A NaN stays one. */
INLINE uint16_t round_bf16(uint32_t bits)
{
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, nan = bits >> 16 | 0x40;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded);
}

/* The code's exponent and mantissa, moved to those of an fp32 number, are one whose exponent is too small by 120. That
 * holds for subnormal codes too. */
void SIMD_SCALE_E4M3(uint16_t *dst, const uint8_t *codes, float scale, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t magnitude = (uint32_t)(codes[i] & 0x7f) << 20, bits;
        float x;
        memcpy(&x, &magnitude, 4);
        x *= 0x1p120f;
        x *= scale;
        memcpy(&bits, &x, 4);
        bits = (codes[i] & 0x7f) == 0x7f ? 0x7fc00000 : bits;
        bits ^= (uint32_t)(codes[i] & 0x80) << 24;
        dst[i] = round_bf16(bits);
    }
}

/* Products of the 16 values with the scale: there are no others. */
INLINE void products(uint16_t out[16], const float values[16], float scale)
{
    for (int i = 0; i < 16; i++) {
        float x = values[i] * scale;
        uint32_t bits;
        memcpy(&bits, &x, 4);
        out[i] = round_bf16(bits);
    }
}

/* Looks up the products of WHOLE codes. */
#if defined(__AVX2__)
enum { WHOLE = 16 };
INLINE void look_up(uint16_t *dst, const uint8_t *codes, const uint16_t table[16])
{
    __m128i bytes = _mm_loadl_epi64((const __m128i *)codes);
    const __m128i mask = _mm_set1_epi8(15), low = _mm_and_si128(bytes, mask),
                  high = _mm_and_si128(_mm_srli_epi16(bytes, 4), mask), order = _mm_unpacklo_epi8(low, high);
#if defined(__AVX512BW__)
    __m256i products;
    memcpy(&products, table, sizeof(products));
    products = _mm256_permutexvar_epi16(_mm256_cvtepu8_epi16(order), products);
    memcpy(dst, &products, sizeof(products));
#else /* the low and the high bytes apart */
    __m128i first, second, part = _mm_set1_epi16(255);
    memcpy(&first, table, sizeof(first));
    memcpy(&second, table + 8, sizeof(second));
    __m128i lows = _mm_packus_epi16(_mm_and_si128(first, part), _mm_and_si128(second, part)),
            highs = _mm_packus_epi16(_mm_srli_epi16(first, 8), _mm_srli_epi16(second, 8));
    lows = _mm_shuffle_epi8(lows, order);
    highs = _mm_shuffle_epi8(highs, order);
    first = _mm_unpacklo_epi8(lows, highs);
    second = _mm_unpackhi_epi8(lows, highs);
    memcpy(dst, &first, sizeof(first));
    memcpy(dst + 8, &second, sizeof(second));
#endif
}
#else
enum { WHOLE = 2 };
INLINE void look_up(uint16_t *dst, const uint8_t *codes, const uint16_t table[16])
{
    dst[0] = table[codes[0] & 15];
    dst[1] = table[codes[0] >> 4];
}
#endif

/* first may be odd: the second code of a byte. */
void SIMD_SCALE_NIBBLES(uint16_t *dst, const uint8_t *codes, const float values[16], float scale, int64_t first,
                        int64_t n)
{
    uint16_t table[16];
    int64_t i = 0;
    products(table, values, scale);
    for (; i < n && (first + i) % 2; i++)
        dst[i] = table[codes[(first + i) / 2] >> 4];
    for (; i + WHOLE <= n; i += WHOLE)
        look_up(dst + i, codes + (first + i) / 2, table);
    for (; i < n; i++)
        dst[i] = table[codes[(first + i) / 2] >> ((first + i) % 2 ? 4 : 0) & 15];
}
