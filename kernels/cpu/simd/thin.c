/* SPDX-License-Identifier: Apache-2.0 */
/* Products of bf16 rows with one fp32 vector, widened in registers, so that each weight is read once. Compiled once per
 * instruction set. */
#include "cpu/simd/table.h"
#include "cpu/simd/vec.h"

typedef uint16_t vh __attribute__((vector_size(VL * 2)));
typedef uint32_t vu __attribute__((vector_size(VL * 4)));

INLINE vf widen(const uint16_t *p)
{
    vh half;
    memcpy(&half, p, sizeof(half));
    return (vf)(__builtin_convertvector(half, vu) << 16);
}

/* The rows of an adapter are nearly all tail. With masked loads it needs no copy. */
INLINE vf widen_tail(const uint16_t *p, int64_t n)
{
#if defined(__AVX512F__)
    __m256i half = _mm256_maskz_loadu_epi16((__mmask16)((1u << n) - 1), p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
#else
    uint16_t some[VL] = { 0 };
    memcpy(some, p, (size_t)n * sizeof(*p));
    return widen(some);
#endif
}

/* Four independent sums hide the latency of the products. rest: the tail of x, as a vector. */
INLINE float dot_row(const uint16_t *w, const float *x, vf rest, int64_t n)
{
    vf s0 = { 0 }, s1 = { 0 }, s2 = { 0 }, s3 = { 0 };
    int64_t i = 0;
    for (; i + 4 * VL <= n; i += 4 * VL) {
        s0 += widen(w + i) * vload(x + i);
        s1 += widen(w + i + VL) * vload(x + i + VL);
        s2 += widen(w + i + 2 * VL) * vload(x + i + 2 * VL);
        s3 += widen(w + i + 3 * VL) * vload(x + i + 3 * VL);
    }
    for (; i + VL <= n; i += VL)
        s0 += widen(w + i) * vload(x + i);
    if (i < n)
        s1 += widen_tail(w + i, n - i) * rest;
    return vsum((s0 + s1) + (s2 + s3));
}

void SIMD_DOT_ROWS(float *y, const uint16_t *w, int64_t pitch, const float *x, int64_t nrow, int64_t n)
{
    const vf rest = vload_tail(x + n / VL * VL, n % VL, 0);
    for (int64_t row = 0; row < nrow; row++)
        y[row] = dot_row(w + row * pitch, x, rest, n);
}

/* Processes one or two vectors of columns at a time, so that the sums stay in registers over all rows. */
void SIMD_ADD_SCALED_ROWS(float *y, const uint16_t *w, int64_t pitch, const float *factors, int64_t nrow, int64_t n)
{
    int64_t i = 0;
    for (; i + 2 * VL <= n; i += 2 * VL) {
        vf s0 = vload(y + i), s1 = vload(y + i + VL);
        for (int64_t row = 0; row < nrow; row++) {
            const uint16_t *at = w + row * pitch + i;
            s0 += widen(at) * factors[row];
            s1 += widen(at + VL) * factors[row];
        }
        vstore(y + i, s0);
        vstore(y + i + VL, s1);
    }
    for (; i < n; i += VL) {
        int64_t left = n - i < VL ? n - i : VL;
        vf s = left == VL ? vload(y + i) : vload_tail(y + i, left, 0);
        for (int64_t row = 0; row < nrow; row++)
            s += widen_tail(w + row * pitch + i, left) * factors[row];
        if (left == VL)
            vstore(y + i, s);
        else
            vstore_tail(y + i, s, left);
    }
}
