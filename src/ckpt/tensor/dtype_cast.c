/* SPDX-License-Identifier: Apache-2.0 */
/* Casts between the four wide floating-point types, in bulk. Every cast goes through float32, one block at a time:
 * widening is exact, and float64 is first rounded, still as float64, to the precision of the target, so that nothing is
 * rounded twice. The loops run over whole blocks of constant length without branches, so that compilers vectorise them
 * at -O2. */
#include <fsdpck/dtype.h>

#include <string.h>

enum { BLOCK = 256 };
#define INLINE inline __attribute__((always_inline)) /* inlined into functions built for several processors */

static const uint32_t inf32 = 0x7f800000u;

/* Selects by mask: the code that compilers generate for ?: prevents vectorisation with some of them. */
static inline int32_t pick(bool c, int32_t yes, int32_t no)
{
    return no ^ ((yes ^ no) & -(int32_t)c);
}

/* ---- float32 <-> the others; n is always BLOCK ---- */

static INLINE void widen_bf16(const uint16_t *restrict in, uint32_t *restrict out)
{
    for (int i = 0; i < BLOCK; i++) {
        uint32_t u = (uint32_t)in[i] << 16;
        out[i] = u | ((u & 0x7fffffffu) > inf32 ? 0x400000u : 0); /* a NaN becomes quiet */
    }
}

static INLINE void narrow_bf16(const uint32_t *restrict in, uint16_t *restrict out)
{
    for (int i = 0; i < BLOCK; i++) {
        uint32_t u = in[i];
        uint32_t rounded = (u + 0x7fffu + (u >> 16 & 1)) >> 16;
        uint32_t nan = u >> 16 | 0x40u;
        out[i] = (uint16_t)((u & 0x7fffffffu) > inf32 ? nan : rounded);
    }
}

/* Compares as signed integers: without its sign bit a float's bits order like an int32_t, and SSE2 has no unsigned
 * comparison. */
static INLINE void widen_f16(const uint16_t *restrict in, uint32_t *restrict out)
{
    for (int i = 0; i < BLOCK; i++) {
        uint32_t sign = (uint32_t)(in[i] & 0x8000u) << 16;
        int32_t v = in[i] & 0x7fff;
        float small = (float)v * 0x1p-24f; /* value of a subnormal (v < 0x400) */
        int32_t bits;
        memcpy(&bits, &small, 4);
        int32_t normal = (v << 13) + (112 << 23);
        int32_t special = v << 13 | (int32_t)inf32 | (v > 0x7c00 ? 0x400000 : 0);
        int32_t finite = v < 0x400 ? bits : normal;
        out[i] = sign | (uint32_t)(v >= 0x7c00 ? special : finite);
    }
}

/* Adding and subtracting 1.5 * 2^23 units in the last place of the result makes the processor round to that place, ties
 * to even. */
static INLINE void narrow_f16(const uint32_t *restrict in, uint16_t *restrict out)
{
    const int32_t low = 113 << 23, high = 143 << 23; /* 2^-14, the smallest normal; 2^16, above the largest */
    for (int i = 0; i < BLOCK; i++) {
        int32_t u = (int32_t)(in[i] & 0x7fffffffu), exponent = u & (int32_t)inf32;
        exponent = pick(exponent < low, low, exponent);
        exponent = pick(exponent > high, high, exponent);
        int32_t magic = exponent + (13 << 23) + 0x400000;
        float x, c;
        memcpy(&x, &u, 4);
        memcpy(&c, &magic, 4);
        float q = (x + c) - c;
        int32_t bits;
        memcpy(&bits, &q, 4);
        int32_t tiny = pick(bits < low, bits, 0); /* 0 if q is not a subnormal: the conversion below stays in range */
        memcpy(&x, &tiny, 4);
        int32_t small = (int32_t)(x * 0x1p24f);
        int32_t normal = pick(bits >= high, 0x7c00, (bits >> 13) - (112 << 10));
        int32_t finite = pick(bits < low, small, normal);
        int32_t nan = 0x7e00 | (u >> 13 & 0x3ff);
        out[i] = (uint16_t)(in[i] >> 16 & 0x8000u) | (uint16_t)pick(u > (int32_t)inf32, nan, finite);
    }
}

static INLINE void widen_f64(const uint32_t *restrict in, double *restrict out)
{
    for (int i = 0; i < BLOCK; i++) {
        float x;
        memcpy(&x, &in[i], 4);
        out[i] = x;
    }
}

static INLINE void narrow_f64(const double *restrict in, uint32_t *restrict out)
{
    for (int i = 0; i < BLOCK; i++) {
        float x = (float)in[i];
        memcpy(&out[i], &x, 4);
    }
}

/* Rounds in place to `precision` bits of significand, or to the place of the last subnormal bit below 2^min_exponent,
 * with the method of narrow_f16. Values beyond the range remain beyond it. */
static INLINE void preround_f64(double *x, int precision, int min_exponent)
{
    const uint64_t low = (uint64_t)(1023 + min_exponent) << 52, high = (uint64_t)(1023 + 128) << 52;
    const uint64_t raise = ((uint64_t)(53 - precision) << 52) + ((uint64_t)1 << 51);
    for (int i = 0; i < BLOCK; i++) {
        uint64_t u, exponent;
        memcpy(&u, &x[i], 8);
        exponent = u & 0x7ff0000000000000u;
        exponent = exponent < low ? low : exponent;
        exponent = exponent > high ? high : exponent;
        uint64_t magic = exponent + raise;
        double c, q;
        memcpy(&c, &magic, 8);
        q = (x[i] + c) - c;
        uint64_t bits;
        memcpy(&bits, &q, 8);
        bits |= u & 0x8000000000000000u; /* a value that rounds to zero keeps its sign */
        memcpy(&x[i], &bits, 8);
    }
}

/* ---- blocks ---- */

static bool castable(enum fsdpck_dtype d)
{
    return d == FSDPCK_FLOAT64 || d == FSDPCK_FLOAT32 || d == FSDPCK_FLOAT16 || d == FSDPCK_BFLOAT16;
}

union block {
    double f64[BLOCK];
    uint32_t u32[BLOCK];
    uint16_t u16[BLOCK];
};

static INLINE void load_block(enum fsdpck_dtype from, union block *in, enum fsdpck_dtype to, uint32_t *mid)
{
    switch (from) {
    case FSDPCK_FLOAT64:
        if (to == FSDPCK_FLOAT16)
            preround_f64(in->f64, 11, -14);
        else if (to == FSDPCK_BFLOAT16)
            preround_f64(in->f64, 8, -126);
        narrow_f64(in->f64, mid);
        break;
    case FSDPCK_FLOAT16: widen_f16(in->u16, mid); break;
    case FSDPCK_BFLOAT16: widen_bf16(in->u16, mid); break;
    default: memcpy(mid, in->u32, sizeof in->u32);
    }
}

static INLINE void store_block(const uint32_t *mid, enum fsdpck_dtype to, union block *out)
{
    switch (to) {
    case FSDPCK_FLOAT64: widen_f64(mid, out->f64); break;
    case FSDPCK_FLOAT16: narrow_f16(mid, out->u16); break;
    case FSDPCK_BFLOAT16: narrow_bf16(mid, out->u16); break;
    default: memcpy(out->u32, mid, sizeof out->u32);
    }
}

static INLINE void cast_blocks(enum fsdpck_dtype from, const char *src, enum fsdpck_dtype to, char *dst, uint64_t nelem)
{
    const size_t from_nbytes = fsdpck_dtype_info(from)->nbytes, to_nbytes = fsdpck_dtype_info(to)->nbytes;
    union block in, out;
    uint32_t mid[BLOCK];
    if (nelem < BLOCK)
        memset(&in, 0, sizeof in); /* a short block is converted whole */
    for (uint64_t i = 0; i < nelem; i += BLOCK) {
        size_t n = nelem - i < BLOCK ? (size_t)(nelem - i) : BLOCK;
        memcpy(&in, src + i * from_nbytes, n * from_nbytes);
        load_block(from, &in, to, mid);
        store_block(mid, to, &out);
        memcpy(dst + i * to_nbytes, &out, n * to_nbytes);
    }
}

typedef void cast_fn(enum fsdpck_dtype, const char *, enum fsdpck_dtype, char *, uint64_t);

static void cast_plain(enum fsdpck_dtype from, const char *src, enum fsdpck_dtype to, char *dst, uint64_t nelem)
{
    cast_blocks(from, src, to, dst, nelem);
}

#if defined(__x86_64__)
/* No FMA: the double rounding here is intended. */
__attribute__((target("avx2"))) static void cast_avx2(enum fsdpck_dtype from, const char *src, enum fsdpck_dtype to,
                                                      char *dst, uint64_t nelem)
{
    cast_blocks(from, src, to, dst, nelem);
}

static cast_fn *best_cast(void)
{
    return __builtin_cpu_supports("avx2") ? cast_avx2 : cast_plain;
}
#else
static cast_fn *best_cast(void)
{
    return cast_plain;
}
#endif

bool fsdpck_dtype_cast(enum fsdpck_dtype from, const void *src, enum fsdpck_dtype to, void *dst, uint64_t nelem)
{
    if (!castable(from) || !castable(to))
        return false;
    if (from != to)
        best_cast()(from, src, to, dst, nelem);
    else if (nelem)
        memcpy(dst, src, nelem * fsdpck_dtype_info(from)->nbytes);
    return true;
}
