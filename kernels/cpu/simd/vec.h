/* SPDX-License-Identifier: Apache-2.0 */
/* Vectors of the instruction set that the file is compiled for, and operations that C lacks. Only files in simd/
 * include it. */
#ifndef SIMD_VEC_H
#define SIMD_VEC_H

#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
enum { VL = 16 };
#elif defined(__AVX2__)
enum { VL = 8 };
#else
enum { VL = 4 };
#endif

typedef float vf __attribute__((vector_size(VL * 4)));
typedef int32_t vi __attribute__((vector_size(VL * 4)));

#define INLINE static inline __attribute__((always_inline))

INLINE vf vload(const float *p)
{
    vf v;
    memcpy(&v, p, sizeof(v));
    return v;
}

INLINE void vstore(float *p, vf v)
{
    memcpy(p, &v, sizeof(v));
}

INLINE vf vset(float x)
{
    return x - (vf){ 0 };
}

/* a > b ? a : b in each lane; b if either is NaN. */
INLINE vf vmax(vf a, vf b)
{
#if defined(__AVX512F__)
    return _mm512_max_ps(a, b);
#elif defined(__AVX2__)
    return _mm256_max_ps(a, b);
#elif defined(__x86_64__)
    return _mm_max_ps(a, b);
#else
    vi mask = a > b;
    return (vf)(((vi)a & mask) | ((vi)b & ~mask));
#endif
}

INLINE vf vmin(vf a, vf b)
{
    return -vmax(-a, -b);
}

/* v if x ≥ limit or x is NaN, else 0. */
INLINE vf vkeep(vf v, vf x, float limit)
{
#if defined(__AVX512F__)
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_NLT_UQ), v);
#else
    return (vf)((vi)v & ~(vi)(x < vset(limit)));
#endif
}

/* Folds all lanes with f, always in the same tree, so that the order of a sum depends on its length only. Every lane
 * holds the result. */
#if defined(__AVX512F__)
#define FOLD_HALF(v, f)    v = f(v, __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7))
#define FOLD_QUARTER(v, f) v = f(v, __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11))
#define FOLD_PAIR(v, f)    v = f(v, __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13))
#define FOLD_ONE(v, f)     v = f(v, __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14))
#elif defined(__AVX2__)
#define FOLD_HALF(v, f)    (void)0
#define FOLD_QUARTER(v, f) v = f(v, __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3))
#define FOLD_PAIR(v, f)    v = f(v, __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5))
#define FOLD_ONE(v, f)     v = f(v, __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6))
#else
#define FOLD_HALF(v, f)    (void)0
#define FOLD_QUARTER(v, f) (void)0
#define FOLD_PAIR(v, f)    v = f(v, __builtin_shufflevector(v, v, 2, 3, 0, 1))
#define FOLD_ONE(v, f)     v = f(v, __builtin_shufflevector(v, v, 1, 0, 3, 2))
#endif
#define FOLD(v, f) \
    do { \
        FOLD_HALF(v, f); \
        FOLD_QUARTER(v, f); \
        FOLD_PAIR(v, f); \
        FOLD_ONE(v, f); \
    } while (0)

INLINE vf vadd(vf a, vf b)
{
    return a + b;
}

INLINE float vsum(vf v)
{
    FOLD(v, vadd);
    return v[0];
}

/* Maximum of the lanes, none of which may be NaN. */
INLINE float vtop(vf v)
{
    FOLD(v, vmax);
    return v[0];
}

/* A tail of n < VL elements; the other lanes hold fill. */
INLINE vf vload_tail(const float *p, int64_t n, float fill)
{
    float lane[VL];
    for (int i = 0; i < VL; i++)
        lane[i] = i < n ? p[i] : fill;
    return vload(lane);
}

INLINE void vstore_tail(float *p, vf v, int64_t n)
{
    float lane[VL];
    vstore(lane, v);
    for (int i = 0; i < n; i++)
        p[i] = lane[i];
}

/* exp(x) to about 1 ulp of fp32 for x ≤ 88 (exp(88) above); 0 below -87.3, where the result would be subnormal; NaN for
 * NaN. Cody-Waite reduction by ln 2 and a polynomial of degree 6 (coefficients of Cephes). */
INLINE vf vexp(vf x)
{
    const vf magic = vset(12582912.0f); /* 1.5·2²³: adding it rounds to an integer */
    vf y = vmin(vset(88.0f), vmax(vset(-87.3f), x));
    vf n = y * 1.44269504f + magic;
    vi power = ((vi)n << 23) + (127 << 23); /* 2ⁿ */
    n -= magic;
    vf r = y - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    vf p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return vkeep(p * (vf)power, x, -87.3f);
}

#endif
