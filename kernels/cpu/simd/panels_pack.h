/* SPDX-License-Identifier: Apache-2.0 */
/* How operands are packed for the panel kernels of panels.h. Included by each file of kernels, with PANELS_BF16 set:
 * a unit is two bf16, or one fp32. */
#ifndef SIMD_PANELS_PACK_H
#define SIMD_PANELS_PACK_H

#include "cpu/simd/panels_store.h"

#if PANELS_BF16
enum { ELEMENTS = 2 };
#else
enum { ELEMENTS = 1 };
#endif
enum { AHEAD = 24 }; /* rows that are fetched ahead of their use */

INLINE __m256i load_half(const char *p, int64_t n)
{
    return n >= LANES ? _mm256_loadu_si256((const __m256i *)p) : _mm256_maskz_loadu_epi16(lanes(n), p);
}

/* Loads sixteen units of a row; elements from n on are 0. nbytes: per element of the
 * source. The kernels for fp32 widen bf16. */
INLINE __m512i load_units(const char *p, int64_t n, const int64_t nbytes)
{
#if PANELS_BF16
    (void)nbytes;
    return n >= LANES * ELEMENTS ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi16(n <= 0 ? 0 : (1u << n) - 1, p);
#else
    if (nbytes == 2)
        return _mm512_slli_epi32(_mm512_cvtepu16_epi32(load_half(p, n)), 16);
    return n >= LANES ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi32(lanes(n), p);
#endif
}

INLINE void pack_rows_of(float *dst, int64_t width, struct kern_cmat src, int64_t ncol, int64_t k, const int64_t nbytes)
{
    const int64_t nunit = (k + ELEMENTS - 1) / ELEMENTS;
    for (int64_t col = 0; col < width; col += LANES)
        for (int64_t u = 0; u < nunit; u += LANES) {
            __m512i r[LANES];
            UNROLL for (int i = 0; i < LANES; i++) r[i] =
                load_units((const char *)src.data + ((col + i) * src.pitch + u * ELEMENTS) * nbytes,
                           col + i < ncol ? k - u * ELEMENTS : 0, nbytes);
            transpose(r);
            UNROLL for (int i = 0; i < LANES; i++) if (u + i < nunit)
                _mm512_storeu_si512(dst + (u + i) * width + col, r[i]);
        }
}

static void pack_rows(float *dst, int64_t width, struct kern_cmat src, int64_t ncol, int64_t k)
{
    if (src.dtype == KERN_BF16)
        pack_rows_of(dst, width, src, ncol, k, 2);
    else
        pack_rows_of(dst, width, src, ncol, k, 4);
}

/* Loads the units of one row of columns; columns from n on are 0. two: the next row exists (for bf16 it provides the
 * upper halves). */
INLINE __m512i unit_row(const char *p, int64_t pitch, int64_t n, bool two, const int64_t nbytes)
{
#if PANELS_BF16
    const __m512i low = _mm512_cvtepu16_epi32(load_half(p, n));
    if (!two)
        return low;
    return _mm512_or_si512(low, _mm512_slli_epi32(_mm512_cvtepu16_epi32(load_half(p + pitch * nbytes, n)), 16));
#else
    (void)pitch, (void)two;
    return load_units(p, n, nbytes);
#endif
}

/* Fetches a row of columns that is packed soon: hardware prefetchers do not follow such strides. */
INLINE void fetch_row(const char *p, int64_t nbytes)
{
    for (int64_t i = 0; i < nbytes + 63; i += 64)
        _mm_prefetch(p + i, _MM_HINT_T0);
}

INLINE void pack_cols_of(float *dst, int64_t width, struct kern_cmat src, int64_t ncol, int64_t k, const int64_t nbytes)
{
    const char *p = src.data;
    for (int64_t l = 0; l < k; l += ELEMENTS) {
        UNROLL for (int i = 0; i < ELEMENTS; i++) fetch_row(p + (AHEAD + i) * src.pitch * nbytes, ncol * nbytes);
        for (int64_t col = 0; col < width; col += LANES)
            _mm512_mask_storeu_epi32(dst + col, lanes(width - col),
                                     unit_row(p + col * nbytes, src.pitch, ncol - col, k - l > 1, nbytes));
        dst += width;
        p += src.pitch * ELEMENTS * nbytes;
    }
}

static void pack_cols(float *dst, int64_t width, struct kern_cmat src, int64_t ncol, int64_t k)
{
    if (src.dtype == KERN_BF16)
        pack_cols_of(dst, width, src, ncol, k, 2);
    else
        pack_cols_of(dst, width, src, ncol, k, 4);
}

#endif
