/* SPDX-License-Identifier: Apache-2.0 */
/* Codes to values, a block of 256 at a time: decode to float32, subtract zero points, multiply, round. Loops over whole
 * blocks without branches, as in tensor/dtype_cast.c, so that compilers vectorise them. */
#include "quant/decode.h"

#include <math.h>
#include <string.h>

#include "tensor/cast_block.h"

enum { BLOCK = CAST_BLOCK };

static const float e2m1[8] = { 0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f };

void fsdpck_decode_set_table(struct fsdpck_decode *d, const float values[16], bool high_first)
{
    for (unsigned b = 0; b < 256; b++) {
        d->pairs[b][high_first] = values[b & 15];
        d->pairs[b][!high_first] = values[b >> 4];
    }
}

float fsdpck_e2m1_value(uint8_t code)
{
    return code < 8 ? e2m1[code] : -e2m1[code - 8];
}

void fsdpck_decode_set_e2m1(struct fsdpck_decode *d, bool plus_zero)
{
    float values[16];
    for (int i = 0; i < 16; i++)
        values[i] = fsdpck_e2m1_value((uint8_t)i);
    if (plus_zero)
        values[8] = 0.0f;
    fsdpck_decode_set_table(d, values, false);
}

float fsdpck_e4m3_value(uint8_t code)
{
    double v[2];
    fsdpck_dtype_to_double(FSDPCK_FLOAT8_E4M3FN, &code, v);
    return (float)v[0];
}

float fsdpck_e8m0_value(uint8_t code)
{
    return code == 255 ? NAN : ldexpf(1.0f, (int)code - 127);
}

/* ---- codes to float32 ---- */

/* A normal code's exponent and mantissa, moved to those of a float32, need 120 added to the exponent. A subnormal one
 * is an integer times 2^-9: taken as a float32 it would be subnormal too, and a product with such costs a hundred
 * others.
 */
CAST_INLINE void widen_e4m3(const uint8_t *restrict in, float *restrict out)
{
    for (int i = 0; i < BLOCK; i++) {
        const int32_t magnitude = in[i] & 0x7f;
        const float small = (float)magnitude * 0x1p-9f;
        int32_t tiny;
        memcpy(&tiny, &small, 4);
        int32_t bits = cast_pick(magnitude < 8, tiny, (magnitude << 20) + (120 << 23));
        bits = cast_pick(magnitude == 0x7f, 0x7fc00000, bits) | (int32_t)((uint32_t)(in[i] & 0x80) << 24);
        memcpy(&out[i], &bits, 4);
    }
}

CAST_INLINE void widen_int8(const uint8_t *restrict in, float *restrict out)
{
    for (int i = 0; i < BLOCK; i++)
        out[i] = (float)(int8_t)in[i];
}

/* `in` holds half as many bytes. */
CAST_INLINE void look_up(const float (*restrict pairs)[2], const uint8_t *restrict in, float *restrict out)
{
    for (int i = 0; i < BLOCK / 2; i++)
        memcpy(out + 2 * i, pairs[in[i]], sizeof pairs[0]);
}

/* ---- scales ---- */

CAST_INLINE void fill(float *restrict out, uint64_t n, float value)
{
    for (uint64_t i = 0; i < n; i++)
        out[i] = value;
}

/* The value of each element's group, for elements [first, first + n). */
CAST_INLINE void spread(const struct fsdpck_groups *g, const float *values, uint64_t first, uint64_t n, float *out)
{
    first += g->phase;
    if (g->index) {
        for (uint64_t i = 0; i < n; i++)
            out[i] = values[g->index[first + i]];
        return;
    }
    uint64_t group = first / g->nelem, left = g->nelem - first % g->nelem;
    if (n == BLOCK && g->nelem == 16 && left == 16) { /* constant lengths become plain stores */
        for (int k = 0; k < BLOCK / 16; k++)
            fill(out + 16 * k, 16, values[group + (uint64_t)k]);
        return;
    }
    if (n == BLOCK && g->nelem == 32 && left == 32) {
        for (int k = 0; k < BLOCK / 32; k++)
            fill(out + 32 * k, 32, values[group + (uint64_t)k]);
        return;
    }
    for (uint64_t at = 0; at < n; group++) {
        uint64_t run = left < n - at ? left : n - at;
        fill(out + at, run, values[group]);
        at += run;
        left = g->nelem;
    }
}

/* ---- blocks ---- */

union narrow {
    uint16_t u16[BLOCK];
    uint32_t u32[BLOCK];
};

struct block {
    uint8_t codes[BLOCK];
    float value[BLOCK], scale[BLOCK], zero[BLOCK];
    uint32_t product[BLOCK];
    union narrow out;
};

CAST_INLINE void narrow(enum fsdpck_dtype to, const uint32_t *in, union narrow *out)
{
    if (to == FSDPCK_BFLOAT16)
        cast_narrow_bf16(in, out->u16);
    else if (to == FSDPCK_FLOAT16)
        cast_narrow_f16(in, out->u16);
    else
        memcpy(out->u32, in, sizeof out->u32);
}

/* Rounds float32 values to the dtype, and widens them again. */
CAST_INLINE void round_via(enum fsdpck_dtype via, uint32_t *product, union narrow *scratch)
{
    narrow(via, product, scratch);
    if (via == FSDPCK_BFLOAT16)
        cast_widen_bf16(scratch->u16, product);
    else
        cast_widen_f16(scratch->u16, product);
}

CAST_INLINE void multiply(struct block *b)
{
    for (int i = 0; i < BLOCK; i++) {
        float x = b->value[i] * b->scale[i];
        memcpy(&b->product[i], &x, 4);
    }
}

CAST_INLINE void clear_ends(struct block *b, uint64_t lead, uint64_t n)
{
    b->scale[0] = b->zero[0] = 0; /* lead is 0 or 1 */
    memset(b->scale + lead + n, 0, (BLOCK - lead - n) * sizeof *b->scale);
    memset(b->zero + lead + n, 0, (BLOCK - lead - n) * sizeof *b->zero);
}

CAST_INLINE void decode_blocks(const struct fsdpck_decode *d, const uint8_t *codes, uint64_t first, uint64_t nelem,
                               const struct fsdpck_groups *groups, char *out)
{
    const bool nibble = d->code == FSDPCK_DECODE_NIBBLE;
    const size_t item = d->to == FSDPCK_FLOAT32 ? 4 : 2;
    struct block b;
    memset(b.codes, 0, sizeof b.codes);
    for (uint64_t at = 0, n; at < nelem; at += n) {
        const uint64_t e = first + at, lead = nibble ? e & 1 : 0; /* an odd code is the second of its byte */
        n = nelem - at < BLOCK - lead ? nelem - at : BLOCK - lead;
        const uint8_t *in = codes + (nibble ? e / 2 : e);
        const size_t nbytes = nibble ? (size_t)(lead + n + 1) / 2 : (size_t)n;
        if (nbytes < (nibble ? BLOCK / 2 : BLOCK)) {
            memcpy(b.codes, in, nbytes);
            in = b.codes;
        }
        if (nibble)
            look_up(d->pairs, in, b.value);
        else if (d->code == FSDPCK_DECODE_E4M3)
            widen_e4m3(in, b.value);
        else
            widen_int8(in, b.value);
        if (lead + n < BLOCK || lead)
            clear_ends(&b, lead, n); /* a short block is decoded whole */
        spread(groups, groups->scale, e, n, b.scale + lead);
        if (groups->zero) {
            spread(groups, groups->zero, e, n, b.zero + lead);
            for (int i = 0; i < BLOCK; i++)
                b.value[i] -= b.zero[i];
        }
        multiply(&b);
        if (d->via != FSDPCK_FLOAT32 && d->via != d->to)
            round_via(d->via, b.product, &b.out);
        narrow(d->to, b.product, &b.out);
        memcpy(out + at * item, (const char *)&b.out + lead * item, n * item);
    }
}

typedef void decode_fn(const struct fsdpck_decode *, const uint8_t *, uint64_t, uint64_t, const struct fsdpck_groups *,
                       char *);

static void decode_plain(const struct fsdpck_decode *d, const uint8_t *codes, uint64_t first, uint64_t nelem,
                         const struct fsdpck_groups *groups, char *out)
{
    decode_blocks(d, codes, first, nelem, groups, out);
}

#if defined(__x86_64__)
/* No FMA: a zero point and a scale must not be contracted. */
__attribute__((target("avx2"))) static void decode_avx2(const struct fsdpck_decode *d, const uint8_t *codes,
                                                        uint64_t first, uint64_t nelem,
                                                        const struct fsdpck_groups *groups, char *out)
{
    decode_blocks(d, codes, first, nelem, groups, out);
}

static decode_fn *best_decode(void)
{
    return __builtin_cpu_supports("avx2") ? decode_avx2 : decode_plain;
}
#else
static decode_fn *best_decode(void)
{
    return decode_plain;
}
#endif

void fsdpck_decode_run(const struct fsdpck_decode *d, const uint8_t *codes, uint64_t first, uint64_t nelem,
                       const struct fsdpck_groups *groups, void *out)
{
    best_decode()(d, codes, first, nelem, groups, out);
}
