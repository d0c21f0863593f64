/* SPDX-License-Identifier: Apache-2.0 */
/* How the panel kernels of panels.h finish rows of C: alpha, bias, `add`, rounding, and a transposed store. Included
 * by each file of kernels, with PANELS_BF16 set; PANELS_BF16 also says how C is rounded to bf16. */
#ifndef SIMD_PANELS_STORE_H
#define SIMD_PANELS_STORE_H

#include "cpu/panels.h"

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

enum { LANES = CPU_PANEL_LANES };

/* Mask of the first n lanes. */
INLINE __mmask16 lanes(int64_t n)
{
    return n >= LANES ? 0xffff : n <= 0 ? 0 : (__mmask16)((1u << n) - 1);
}

INLINE __m512 widen(__m256i bits)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

/* Rounds like cpu_simd.narrow, except that the bf16 instruction flushes subnormal numbers (below 2⁻¹²⁶) to 0. */
INLINE __m256i narrow(__m512 v)
{
#if PANELS_BF16
    return (__m256i)_mm512_cvtneps_pbh(v);
#else
    const __m512i bits = _mm512_castps_si512(v), one = _mm512_set1_epi32(1);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), one);
    __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    rounded = _mm512_mask_or_epi32(rounded, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
#endif
}

/* Finishes nvec whole vectors of a row from column col on. finish_some finishes a partial vector. */
INLINE void finish_row(const int nvec, const struct cpu_panel_out *out, int64_t row, int64_t col, __m512 v[])
{
    UNROLL for (int j = 0; j < nvec; j++) v[j] = _mm512_mul_ps(v[j], _mm512_set1_ps(out->alpha));
    if (out->bias)
        UNROLL for (int j = 0; j < nvec; j++) v[j] = _mm512_add_ps(v[j], _mm512_loadu_ps(out->bias + col + j * LANES));
    if (out->add.data && out->add.dtype == KERN_F32)
        UNROLL for (int j = 0; j < nvec; j++) v[j] =
            _mm512_add_ps(v[j], _mm512_loadu_ps((const float *)out->add.data + row * out->add.pitch + col + j * LANES));
    else if (out->add.data)
        UNROLL for (int j = 0; j < nvec; j++) v[j] =
            _mm512_add_ps(v[j], widen(_mm256_loadu_si256((const __m256i *)((const uint16_t *)out->add.data +
                                                                           row * out->add.pitch + col + j * LANES))));
    if (out->c.dtype == KERN_F32)
        UNROLL for (int j = 0; j < nvec; j++)
            _mm512_storeu_ps((float *)out->c.data + row * out->c.pitch + col + j * LANES, v[j]);
    else
        UNROLL for (int j = 0; j < nvec; j++) _mm256_storeu_si256(
            (__m256i *)((uint16_t *)out->c.data + row * out->c.pitch + col + j * LANES), narrow(v[j]));
}

/* Finishes a vector of which only n < LANES columns exist. */
static void finish_some(const struct cpu_panel_out *out, int64_t row, int64_t col, int64_t n, __m512 v)
{
    const __mmask16 there = lanes(n);
    v = _mm512_mul_ps(v, _mm512_set1_ps(out->alpha));
    if (out->bias)
        v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(there, out->bias + col));
    if (out->add.data && out->add.dtype == KERN_F32)
        v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(there, (const float *)out->add.data + row * out->add.pitch + col));
    else if (out->add.data)
        v = _mm512_add_ps(
            v, widen(_mm256_maskz_loadu_epi16(there, (const uint16_t *)out->add.data + row * out->add.pitch + col)));
    if (out->c.dtype == KERN_F32)
        _mm512_mask_storeu_ps((float *)out->c.data + row * out->c.pitch + col, there, v);
    else
        _mm256_mask_storeu_epi16((uint16_t *)out->c.data + row * out->c.pitch + col, there, narrow(v));
}

INLINE void finish(const int nvec, const struct cpu_panel_out *out, int64_t row, int64_t col, __m512 v[])
{
    if (out->ncol - col >= nvec * LANES)
        finish_row(nvec, out, row, col, v);
    else
        for (int j = 0; j < nvec; j++)
            if (out->ncol - col >= (j + 1) * LANES)
                finish_row(1, out, row, col + j * LANES, v + j);
            else if (out->ncol - col > j * LANES)
                finish_some(out, row, col + j * LANES, out->ncol - col - j * LANES, v[j]);
}

/* Transposes a 16 x 16 matrix: pairs of lanes, then pairs of pairs, then quarters. */
INLINE void transpose(__m512i r[LANES])
{
    __m512i t[LANES];
    UNROLL for (int i = 0; i < LANES; i += 2)
    {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    UNROLL for (int i = 0; i < LANES; i += 4)
    {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    UNROLL for (int i = 0; i < 4; i++)
    {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    UNROLL for (int i = 0; i < 4; i++)
    {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
        r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

static void store_transposed(int64_t nrow, float *sums, const struct cpu_panel_out *out)
{
    for (int64_t col = 0; col < out->ncol; col += LANES)
        for (int64_t row = 0; row < nrow; row += LANES) {
            __m512i r[LANES];
            UNROLL for (int i = 0; i < LANES; i++) r[i] =
                col + i < out->ncol ? _mm512_loadu_si512(sums + (col + i) * CPU_PANEL_WIDTH + row)
                                    : _mm512_setzero_si512();
            transpose(r);
            UNROLL for (int i = 0; i < LANES; i++) if (row + i < nrow)
                finish(1, out, row + i, col, (__m512[]){ _mm512_castsi512_ps(r[i]) });
        }
}

#endif
