/* SPDX-License-Identifier: Apache-2.0 */
/* Quantizers: the scale of each block, then its codes. The loops over values run over blocks of constant length without
 * branches, built for AVX2 too. No FMA: every product is rounded. */
#include "quant/quantize_impl.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "quant/decode.h"
#include "tensor/cast_block.h"

enum { RUN = 64, MX = 32, NV = 16, GROUPS = 64 };

static const float e4m3_max = 448.0f, e2m1_max = 6.0f;

const float fsdpck_nf4_values[16] = { -1.0f,
                                      -0.6961928009986877f,
                                      -0.5250730514526367f,
                                      -0.39491748809814453f,
                                      -0.28444138169288635f,
                                      -0.18477343022823334f,
                                      -0.09105003625154495f,
                                      0.0f,
                                      0.07958029955625534f,
                                      0.16093020141124725f,
                                      0.24611230194568634f,
                                      0.33791524171829224f,
                                      0.44070982933044434f,
                                      0.5626170039176941f,
                                      0.7229568362236023f,
                                      1.0f };

/* ---- runs of RUN values to codes ---- */

/* Codes are computed as int32_t: as bytes, gcc packs and unpacks masks at every comparison. */

/* Rounds to nearest even and saturates. Below 2^-6 the codes are multiples of 2^-9: adding 1.5 * 2^14 makes the
 * processor round to that place. */
CAST_INLINE void e4m3_run(const float *restrict in, int32_t *restrict out)
{
    for (int i = 0; i < RUN; i++) {
        int32_t u, sign, magnitude, tiny;
        memcpy(&u, &in[i], 4);
        sign = (int32_t)((uint32_t)u >> 24 & 0x80);
        magnitude = u & 0x7fffffff;
        magnitude = magnitude > 0x43e00000 ? 0x43e00000 : magnitude; /* 448 */
        float small;
        memcpy(&small, &magnitude, 4);
        small += 0x1.8p14f;
        memcpy(&tiny, &small, 4);
        int32_t normal = ((magnitude + 0x7ffff + (magnitude >> 20 & 1)) >> 20) - (120 << 3);
        int32_t code = cast_pick(magnitude < 0x3c800000, tiny & 0x0f, normal);
        out[i] = sign | cast_pick((u & 0x7fffffff) > (int32_t)cast_inf32, 0x7f, code);
    }
}

/* The E2M1 code of the magnitude, ties to the even code. The bits of positive floats order like integers. */
CAST_INLINE void e2m1_run(const float *restrict in, bool sign_of_zero, int32_t *restrict out)
{
    for (int i = 0; i < RUN; i++) {
        int32_t u;
        memcpy(&u, &in[i], 4);
        const int32_t a = u & 0x7fffffff;
        const int32_t above = -(int32_t)(a > 0x3e800000) - (int32_t)(a >= 0x3f400000) - (int32_t)(a > 0x3fa00000) -
                              (int32_t)(a >= 0x3fe00000) - (int32_t)(a > 0x40200000) - (int32_t)(a >= 0x40600000) -
                              (int32_t)(a > 0x40a00000); /* 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5 */
        const int32_t sign = (int32_t)((uint32_t)u >> 31 << 3);
        out[i] = -above | (sign_of_zero ? sign : cast_pick(a == 0, 0, sign));
    }
}

/* Counts the midpoints that the value is above: equal to one takes the lower code. */
CAST_INLINE void nf4_run(const float *restrict in, const float *restrict midpoints, int32_t *restrict out)
{
    for (int i = 0; i < RUN; i++) {
        int32_t code = 0;
        for (int k = 0; k < 15; k++)
            code += in[i] > midpoints[k];
        out[i] = code;
    }
}

CAST_INLINE void bytes_run(const int32_t *restrict codes, uint8_t *restrict out)
{
    for (int i = 0; i < RUN; i++)
        out[i] = (uint8_t)codes[i];
}

/* Two codes a byte. */
CAST_INLINE void pack_run(const int32_t *restrict codes, bool high_first, uint8_t *restrict out)
{
    for (int i = 0; i < RUN / 2; i++) {
        uint64_t two;
        memcpy(&two, codes + 2 * i, 8); /* the first code in the low half, on little-endian processors */
        out[i] = (uint8_t)(high_first ? two << 4 | two >> 32 : two | two >> 28);
    }
}

CAST_INLINE void spread(const struct fsdpck_encoding *c, uint64_t at, float *restrict by)
{
    const uint64_t step = c->group < RUN ? c->group : RUN;
    for (uint64_t k = 0; k < RUN; k += step)
        for (uint64_t i = 0; i < step; i++)
            by[k + i] = c->by[(at + k) / c->group];
}

CAST_INLINE void scale_run(const struct fsdpck_encoding *c, const float *restrict in, const float *restrict by,
                           float *restrict x)
{
    if (c->divide)
        for (int i = 0; i < RUN; i++)
            x[i] = in[i] / by[i];
    else
        for (int i = 0; i < RUN; i++)
            x[i] = in[i] * by[i];
    for (int i = 0; i < RUN && c->kind == FSDPCK_CODES_NF4; i++)
        x[i] = x[i] < -1.0f ? -1.0f : x[i] > 1.0f ? 1.0f : x[i];
}

/* Whole runs are encoded in place; the rest, and its groups, in copies that end in zeros. nelem: of `in`; an odd end
 * takes the code of 0 for its other half. */
CAST_INLINE void encode_all(const struct fsdpck_encoding *c, const float *in, uint64_t nelem, uint8_t *out)
{
    const bool bytes = c->kind == FSDPCK_CODES_E4M3;
    float rest[RUN], by[RUN], x[RUN];
    int32_t codes[RUN];
    uint8_t packed[RUN];
    for (uint64_t at = 0; at < nelem; at += RUN) {
        uint64_t n = nelem - at < RUN ? nelem - at : RUN;
        const float *from = in + at;
        if (n < RUN) {
            memset(rest, 0, sizeof rest);
            memcpy(rest, from, n * sizeof *rest);
            from = rest;
        }
        if (n == RUN || c->group >= RUN) {
            spread(c, at, by);
        } else {
            for (uint64_t i = 0; i < RUN; i++)
                by[i] = i < n ? c->by[(at + i) / c->group] : 1.0f;
        }
        scale_run(c, from, by, x);
        if (bytes)
            e4m3_run(x, codes);
        else if (c->kind == FSDPCK_CODES_NF4)
            nf4_run(x, c->midpoints, codes);
        else
            e2m1_run(x, c->kind == FSDPCK_CODES_E2M1_SIGNED_ZERO, codes);
        if (bytes)
            bytes_run(codes, packed);
        else
            pack_run(codes, c->kind == FSDPCK_CODES_NF4, packed);
        if (n == RUN)
            memcpy(out + (bytes ? at : at / 2), packed, bytes ? RUN : RUN / 2);
        else
            memcpy(out + (bytes ? at : at / 2), packed, bytes ? n : (n + 1) / 2);
    }
}

/* Without its sign bit a float's bits order like an integer. */
CAST_INLINE float amax_of(const float *in, uint64_t nelem)
{
    int32_t most[16] = { 0 }, u;
    uint64_t i = 0;
    for (; i + 16 <= nelem; i += 16)
        for (int k = 0; k < 16; k++) {
            memcpy(&u, &in[i + (uint64_t)k], 4);
            u &= 0x7fffffff;
            most[k] = u > most[k] ? u : most[k];
        }
    for (; i < nelem; i++) {
        memcpy(&u, &in[i], 4);
        u &= 0x7fffffff;
        most[0] = u > most[0] ? u : most[0];
    }
    for (int k = 1; k < 16; k++)
        most[0] = most[k] > most[0] ? most[k] : most[0];
    float out;
    memcpy(&out, &most[0], 4);
    return out;
}

CAST_INLINE void amax_groups(const float *in, uint64_t ngroups, uint64_t group, float *out)
{
    if (group == NV)
        for (uint64_t i = 0; i < ngroups; i++)
            out[i] = amax_of(in + i * NV, NV);
    else
        for (uint64_t i = 0; i < ngroups; i++)
            out[i] = amax_of(in + i * group, group);
}

/* The same code, built for several processors. */
#define BUILT_FOR(name, ...) \
    __VA_ARGS__ static void encode_##name(const struct fsdpck_encoding *c, const float *in, uint64_t nelem, \
                                          uint8_t *out) \
    { \
        encode_all(c, in, nelem, out); \
    } \
    __VA_ARGS__ static void amax_##name(const float *in, uint64_t ngroups, uint64_t group, float *out) \
    { \
        amax_groups(in, ngroups, group, out); \
    }

BUILT_FOR(plain)
#if defined(__x86_64__)
#ifdef __clang__
#define AVX512 "avx512f,avx512bw,avx512dq,avx512vl"
#else
#define AVX512 "avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512"
#endif
BUILT_FOR(avx2, __attribute__((target("avx2"))))
BUILT_FOR(avx512, __attribute__((target(AVX512))))

static bool has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

#define BEST(name) (has_avx512() ? name##_avx512 : __builtin_cpu_supports("avx2") ? name##_avx2 : name##_plain)
#else
#define BEST(name) name##_plain
#endif

void fsdpck_quantize_codes(const struct fsdpck_encoding *c, const float *in, uint64_t nelem, uint8_t *out)
{
    BEST(encode)(c, in, nelem, out);
}

void fsdpck_quantize_amax_each(const float *in, uint64_t ngroups, uint64_t group, float *out)
{
    BEST(amax)(in, ngroups, group, out);
}

float fsdpck_quantize_amax(const float *in, uint64_t nelem)
{
    float out;
    fsdpck_quantize_amax_each(in, 1, nelem, &out);
    return out;
}

/* A number divided by a tensor is, in torch, the tensor's reciprocal times the number: rounded twice. */
static float divide(float number, float by)
{
    return 1.0f / by * number;
}

/* ---- MXFP4 ---- */

int fsdpck_mx_exponent(float amax, float most, enum fsdpck_mx_rule rule)
{
    uint32_t u;
    int exponent, of_most;
    if (rule == FSDPCK_MX_ROUNDED) {
        memcpy(&u, &amax, 4);
        u += 0x200000; /* a quarter of the mantissa */
        memcpy(&amax, &u, 4);
    }
    frexpf(most, &of_most);
    if (amax == 0)
        return -127;
    if (!isfinite(amax)) /* rounded up to 2^128 */
        return 128 - (of_most - 1);
    frexpf(amax, &exponent);
    exponent -= of_most;
    if (rule == FSDPCK_MX_CEIL)
        exponent = amax / most > 0x1p-127f ? (int)ceilf(log2f(amax / most)) : -127;
    return exponent < -127 ? -127 : exponent > 127 ? 127 : exponent;
}

void fsdpck_quantize_mxfp4(const float *in, uint64_t nelem, enum fsdpck_mx_rule rule, uint8_t *codes, uint8_t *scales)
{
    float by[GROUPS];
    const struct fsdpck_encoding e = {
        .kind = rule == FSDPCK_MX_FLOOR ? FSDPCK_CODES_E2M1_SIGNED_ZERO : FSDPCK_CODES_E2M1, .by = by, .group = MX
    };
    for (uint64_t at = 0, n; at < nelem / MX; at += n) {
        n = nelem / MX - at < GROUPS ? nelem / MX - at : GROUPS;
        fsdpck_quantize_amax_each(in + at * MX, n, MX, by);
        for (uint64_t i = 0; i < n; i++) {
            int exponent = fsdpck_mx_exponent(by[i], e2m1_max, rule);
            by[i] = fsdpck_e8m0_value((uint8_t)(127 - exponent));
            scales[at + i] = (uint8_t)(exponent + 127);
        }
        if (codes)
            fsdpck_quantize_codes(&e, in + at * MX, n * MX, codes + at * MX / 2);
    }
}

/* ---- NVFP4 ---- */

float fsdpck_nvfp4_global(float amax, enum fsdpck_nvfp4_rule rule)
{
    if (rule == FSDPCK_NVFP4_MODELOPT)
        return amax / (e2m1_max * e4m3_max);
    float global = divide(e4m3_max * e2m1_max, amax < FLT_MIN ? FLT_MIN : amax);
    return isfinite(global) ? global : 1.0f;
}

/* The scales of groups with these largest values, which become what the groups are divided by. */
static void nvfp4_scales(float *amax, uint64_t n, float global, enum fsdpck_nvfp4_rule rule, uint8_t *codes)
{
    const bool modelopt = rule == FSDPCK_NVFP4_MODELOPT;
    const float one = 1.0f;
    const struct fsdpck_encoding e = { .kind = FSDPCK_CODES_E4M3, .by = &one, .group = UINT64_MAX };
    for (uint64_t i = 0; i < n; i++) {
        float s = modelopt ? amax[i] / (e2m1_max * global) : global * (amax[i] / e2m1_max);
        if (modelopt)
            s = amax[i] == 0 ? 1.0f : s < 0x1p-9f ? 0x1p-9f : s;
        amax[i] = s;
    }
    fsdpck_quantize_codes(&e, amax, n, codes);
    for (uint64_t i = 0; i < n; i++) {
        if (!modelopt && codes[i] == 0)
            codes[i] = 0x20; /* compressed-tensors takes 0.125 for 0 */
        float s = fsdpck_e4m3_value(codes[i]);
        amax[i] = !modelopt ? s / global : global > 0 ? s * global : 1.0f; /* all are zero: so are the codes */
    }
}

void fsdpck_quantize_nvfp4(const float *in, uint64_t nelem, float global, enum fsdpck_nvfp4_rule rule, uint8_t *codes,
                           uint8_t *scales)
{
    float by[GROUPS];
    const struct fsdpck_encoding e = { .kind = FSDPCK_CODES_E2M1, .divide = true, .by = by, .group = NV };
    for (uint64_t at = 0, n; at < nelem / NV; at += n) {
        n = nelem / NV - at < GROUPS ? nelem / NV - at : GROUPS;
        fsdpck_quantize_amax_each(in + at * NV, n, NV, by);
        nvfp4_scales(by, n, global, rule, scales + at);
        if (codes)
            fsdpck_quantize_codes(&e, in + at * NV, n * NV, codes + at * NV / 2);
    }
}

/* ---- NF4 ---- */

/* Whole blocks are multiplied by the reciprocal; the short one at the end is divided. */
void fsdpck_quantize_nf4(const float *in, uint64_t nelem, uint64_t block, uint8_t *codes, float *absmax)
{
    float midpoints[15];
    for (int i = 0; i < 15; i++)
        midpoints[i] = (fsdpck_nf4_values[i] + fsdpck_nf4_values[i + 1]) / 2;
    for (uint64_t at = 0; at < nelem; at += block) {
        uint64_t n = nelem - at < block ? nelem - at : block;
        float amax = fsdpck_quantize_amax(in + at, n), used = amax > 1e-38f ? amax : 1e-38f;
        float by = n == block ? 1.0f / used : used;
        const struct fsdpck_encoding e = {
            .kind = FSDPCK_CODES_NF4, .divide = n < block, .by = &by, .group = UINT64_MAX, .midpoints = midpoints
        };
        absmax[at / block] = n == block ? amax : used;
        if (codes)
            fsdpck_quantize_codes(&e, in + at, n, codes + at / 2);
    }
}
