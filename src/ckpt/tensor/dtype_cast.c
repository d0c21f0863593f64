/* SPDX-License-Identifier: Apache-2.0 */
/* Casts between the four wide floating-point types, in bulk. Every cast goes through float32, one block at a time:
 * widening is exact, and float64 is first rounded, still as float64, to the precision of the target, so that nothing is
 * rounded twice. The loops run over whole blocks of constant length without branches, so that compilers vectorise them
 * at -O2. */
#include <fsdpck/dtype.h>

#include <string.h>

#include "tensor/cast_block.h"

enum { BLOCK = CAST_BLOCK };
#define INLINE inline __attribute__((always_inline)) /* inlined into functions built for several processors */

/* ---- float32 <-> float64 ---- */

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

/* in, out: a union block, or BLOCK elements in place, aligned to one. f64 elements are changed. */
static INLINE void load_block(enum fsdpck_dtype from, void *in, enum fsdpck_dtype to, uint32_t *mid)
{
    switch (from) {
    case FSDPCK_FLOAT64:
        if (to == FSDPCK_FLOAT16)
            preround_f64(in, 11, -14);
        else if (to == FSDPCK_BFLOAT16)
            preround_f64(in, 8, -126);
        narrow_f64(in, mid);
        break;
    case FSDPCK_FLOAT16: cast_widen_f16(in, mid); break;
    case FSDPCK_BFLOAT16: cast_widen_bf16(in, mid); break;
    default: memcpy(mid, in, BLOCK * sizeof *mid);
    }
}

static INLINE void store_block(const uint32_t *mid, enum fsdpck_dtype to, void *out)
{
    switch (to) {
    case FSDPCK_FLOAT64: widen_f64(mid, out); break;
    case FSDPCK_FLOAT16: cast_narrow_f16(mid, out); break;
    case FSDPCK_BFLOAT16: cast_narrow_bf16(mid, out); break;
    default: memcpy(out, mid, BLOCK * sizeof *mid);
    }
}

static bool is_aligned(const char *p, size_t nbytes)
{
    return (uintptr_t)p % nbytes == 0;
}

static INLINE void cast_blocks(enum fsdpck_dtype from, const char *src, enum fsdpck_dtype to, char *dst, uint64_t nelem)
{
    const size_t from_nbytes = fsdpck_dtype_info(from)->nbytes, to_nbytes = fsdpck_dtype_info(to)->nbytes;
    union block in, out;
    uint32_t mid[BLOCK];
    uint64_t i = 0;
    if (from != FSDPCK_FLOAT64 && is_aligned(src, from_nbytes) && is_aligned(dst, to_nbytes))
        for (; i + BLOCK <= nelem; i += BLOCK) { /* whole blocks, in place */
            load_block(from, (void *)(uintptr_t)(src + i * from_nbytes), to, mid);
            store_block(mid, to, dst + i * to_nbytes);
        }
    if (nelem - i < BLOCK)
        memset(&in, 0, sizeof in); /* a short block is converted whole */
    for (; i < nelem; i += BLOCK) {
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
