/* SPDX-License-Identifier: Apache-2.0 */
/* Casts of one block between float32 and the narrow floating-point types, as inline functions without branches: each
 * user builds its loops over them for several processors, and all of them give the same bits. */
#ifndef CKPT_CAST_BLOCK_H
#define CKPT_CAST_BLOCK_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define CAST_BLOCK  256
#define CAST_INLINE static inline __attribute__((always_inline))

static const uint32_t cast_inf32 = 0x7f800000u;

/* Selects by mask: the code that compilers generate for ?: prevents vectorisation with some of them. */
CAST_INLINE int32_t cast_pick(bool c, int32_t yes, int32_t no)
{
    return no ^ ((yes ^ no) & -(int32_t)c);
}

/* ---- float32 <-> the others; n is always CAST_BLOCK ---- */

CAST_INLINE void cast_widen_bf16(const uint16_t *restrict in, uint32_t *restrict out)
{
    for (int i = 0; i < CAST_BLOCK; i++) {
        uint32_t u = (uint32_t)in[i] << 16;
        out[i] = u | ((u & 0x7fffffffu) > cast_inf32 ? 0x400000u : 0); /* a NaN becomes quiet */
    }
}

CAST_INLINE void cast_narrow_bf16(const uint32_t *restrict in, uint16_t *restrict out)
{
    for (int i = 0; i < CAST_BLOCK; i++) {
        uint32_t u = in[i];
        uint32_t rounded = (u + 0x7fffu + (u >> 16 & 1)) >> 16;
        uint32_t nan = u >> 16 | 0x40u;
        out[i] = (uint16_t)((u & 0x7fffffffu) > cast_inf32 ? nan : rounded);
    }
}

/* Compares as signed integers: without its sign bit a float's bits order like an int32_t, and SSE2 has no unsigned
 * comparison. */
CAST_INLINE void cast_widen_f16(const uint16_t *restrict in, uint32_t *restrict out)
{
    for (int i = 0; i < CAST_BLOCK; i++) {
        uint32_t sign = (uint32_t)(in[i] & 0x8000u) << 16;
        int32_t v = in[i] & 0x7fff;
        float small = (float)v * 0x1p-24f; /* value of a subnormal (v < 0x400) */
        int32_t bits;
        memcpy(&bits, &small, 4);
        int32_t normal = (v << 13) + (112 << 23);
        int32_t special = v << 13 | (int32_t)cast_inf32 | (v > 0x7c00 ? 0x400000 : 0);
        int32_t finite = v < 0x400 ? bits : normal;
        out[i] = sign | (uint32_t)(v >= 0x7c00 ? special : finite);
    }
}

/* Adding and subtracting 1.5 * 2^23 units in the last place of the result makes the processor round to that place, ties
 * to even. */
CAST_INLINE void cast_narrow_f16(const uint32_t *restrict in, uint16_t *restrict out)
{
    const int32_t low = 113 << 23, high = 143 << 23; /* 2^-14, the smallest normal; 2^16, above the largest */
    for (int i = 0; i < CAST_BLOCK; i++) {
        int32_t u = (int32_t)(in[i] & 0x7fffffffu), exponent = u & (int32_t)cast_inf32;
        exponent = cast_pick(exponent < low, low, exponent);
        exponent = cast_pick(exponent > high, high, exponent);
        int32_t magic = exponent + (13 << 23) + 0x400000;
        float x, c;
        memcpy(&x, &u, 4);
        memcpy(&c, &magic, 4);
        float q = (x + c) - c;
        int32_t bits;
        memcpy(&bits, &q, 4);
        int32_t tiny =
            cast_pick(bits < low, bits, 0); /* 0 if q is not a subnormal: the conversion below stays in range */
        memcpy(&x, &tiny, 4);
        int32_t small = (int32_t)(x * 0x1p24f);
        int32_t normal = cast_pick(bits >= high, 0x7c00, (bits >> 13) - (112 << 10));
        int32_t finite = cast_pick(bits < low, small, normal);
        int32_t nan = 0x7e00 | (u >> 13 & 0x3ff);
        out[i] = (uint16_t)(in[i] >> 16 & 0x8000u) | (uint16_t)cast_pick(u > (int32_t)cast_inf32, nan, finite);
    }
}

#endif
