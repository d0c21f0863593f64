/* Vectors of the instruction set that the file is compiled for, and what C has no operator for. Only files in simd/ include it. */
#ifndef SIMD_VEC_H
#define SIMD_VEC_H

#include <stdint.h>
#include <string.h>

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
    return x - (vf){0};
}

/* Lanes in pairs, always the same tree: the order of a sum depends on its length alone. */
INLINE float vsum(vf v)
{
    float lane[VL];
    memcpy(lane, &v, sizeof(v));
    for (int half = VL / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] += lane[i + half];
    return lane[0];
}

INLINE vf vselect(vi mask, vf yes, vf no)
{
    return (vf)(((vi)yes & mask) | ((vi)no & ~mask));
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

/* exp(x) to about 1 ulp of fp32 for x ≤ 88 (and exp(88) above); NaN of NaN; 0 below -87.3 (where the result would no longer be normal). Cody-Waite reduction by ln 2 and a
 * polynomial of degree 6 (Cephes' coefficients). */
INLINE vf vexp(vf x)
{
    const vf magic = vset(12582912.0f); /* 1.5·2²³: adding it rounds to an integer */
    vi small = x < -87.3f, nan = x != x;
    x = vselect(x > 88.0f, vset(88.0f), x);
    x = vselect(small, vset(-87.3f), x);
    vf n = x * 1.44269504f + magic;
    vi bits = (vi)n;
    n -= magic;
    vf r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    vf p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    vf y = (vf)((vi)p + (bits << 23));
    y = vselect(small, vset(0), y);
    return vselect(nan, vset(__builtin_nanf("")), y);
}

#endif
