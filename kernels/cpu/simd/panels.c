/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of panels.h, for AVX-512. Compiled once for fp32 and once for bf16 (PANELS_BF16). They must not know of
 * threads or of how a product is cut. */
#include "cpu/panels.h"

#include <immintrin.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#if PANELS_BF16
enum { ELEMENTS = 2, BYTES = 2 };
#define TABLE cpu_panels_bf16
#else
enum { ELEMENTS = 1, BYTES = 4 };
#define TABLE cpu_panels_f32
#endif
enum { LANES = CPU_PANEL_LANES, MOST_ROWS = 12, MOST_VECTORS = CPU_PANEL_VECTORS, AHEAD = 24 };

INLINE __m512 step(__m512 sum, __m512i a, __m512i b)
{
#if PANELS_BF16
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
#else
    return _mm512_fmadd_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), sum);
#endif
}

INLINE __m512i spread(const char *unit)
{
    int32_t bits;
    memcpy(&bits, unit, sizeof(bits));
    return _mm512_set1_epi32(bits);
}

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

/* nrow and nvec are constants wherever this is inlined, so the sums are registers. One pointer serves three rows,
 * because an address can encode 0, 1 and 2 times the stride. */
INLINE void tile(const int nrow, const int nvec, int64_t row, const struct cpu_panel_part *parts, int nparts,
                 const struct cpu_panel_out *out)
{
    __m512 sum[MOST_ROWS][MOST_VECTORS];
    UNROLL for (int i = 0; i < nrow; i++) UNROLL for (int j = 0; j < nvec; j++) sum[i][j] = _mm512_setzero_ps();
    for (const struct cpu_panel_part *p = parts; p < parts + nparts; p++) {
        const char *a = p->a + row * p->row;
        const float *b = p->b;
        const int64_t stride = p->row, unit = p->unit;
        for (int64_t u = 0; u < p->nunit; u++) {
            __m512i v[MOST_VECTORS];
            UNROLL for (int j = 0; j < nvec; j++) v[j] = _mm512_load_si512(b + j * LANES);
            const char *at = a;
            UNROLL for (int i = 0; i < nrow; i++)
            {
                const __m512i x = spread(at + i % 3 * stride);
                UNROLL for (int j = 0; j < nvec; j++) sum[i][j] = step(sum[i][j], x, v[j]);
                at += i % 3 == 2 ? 3 * stride : 0;
            }
            a += unit;
            b += nvec * LANES;
        }
    }
    UNROLL for (int i = 0; i < nrow; i++) finish(nvec, out, row + i, 0, sum[i]);
}

/* Tiles of `rows` rows, then of 4, 2 and 1 for the remaining rows. */
#define STRIP(name, rows, nvec) \
    static void name(int64_t nrow, const struct cpu_panel_part *parts, int nparts, const struct cpu_panel_out *out) \
    { \
        int64_t row = 0; \
        for (; row + rows <= nrow; row += rows) \
            tile(rows, nvec, row, parts, nparts, out); \
        for (; row + 4 <= nrow; row += 4) \
            tile(4, nvec, row, parts, nparts, out); \
        if (row + 2 <= nrow) { \
            tile(2, nvec, row, parts, nparts, out); \
            row += 2; \
        } \
        if (row < nrow) \
            tile(1, nvec, row, parts, nparts, out); \
    }

STRIP(strip1, 12, 1)
STRIP(strip2, 12, 2)
STRIP(strip3, 8, 3)
STRIP(strip4, 6, 4)

static void strip(int64_t nrow, int nvec, const struct cpu_panel_part *parts, int nparts,
                  const struct cpu_panel_out *out)
{
    static void (*const strips[])(int64_t, const struct cpu_panel_part *, int,
                                  const struct cpu_panel_out *) = { strip1, strip2, strip3, strip4 };
    strips[nvec - 1](nrow, parts, nparts, out);
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

/* Loads sixteen units of a row; elements from n on are 0. */
INLINE __m512i load_units(const char *p, int64_t n)
{
    if (n >= LANES * ELEMENTS)
        return _mm512_loadu_si512(p);
#if PANELS_BF16
    return _mm512_maskz_loadu_epi16(n <= 0 ? 0 : (1u << n) - 1, p);
#else
    return _mm512_maskz_loadu_epi32(lanes(n), p);
#endif
}

static void pack_rows(float *dst, int64_t width, struct kern_cmat src, int64_t ncol, int64_t k)
{
    const int64_t nunit = (k + ELEMENTS - 1) / ELEMENTS;
    for (int64_t col = 0; col < width; col += LANES)
        for (int64_t u = 0; u < nunit; u += LANES) {
            __m512i r[LANES];
            UNROLL for (int i = 0; i < LANES; i++) r[i] =
                load_units((const char *)src.data + ((col + i) * src.pitch + u * ELEMENTS) * BYTES,
                           col + i < ncol ? k - u * ELEMENTS : 0);
            transpose(r);
            UNROLL for (int i = 0; i < LANES; i++) if (u + i < nunit)
                _mm512_storeu_si512(dst + (u + i) * width + col, r[i]);
        }
}

/* Loads the units of one row of columns; columns from n on are 0. two: the next row exists (for bf16 it provides the
 * upper halves). */
INLINE __m512i unit_row(const char *p, int64_t pitch, int64_t n, bool two)
{
#if PANELS_BF16
    const __m256i low = n >= LANES ? _mm256_loadu_si256((const __m256i *)p) : _mm256_maskz_loadu_epi16(lanes(n), p);
    if (!two)
        return _mm512_cvtepu16_epi32(low);
    p += pitch * BYTES;
    const __m256i high = n >= LANES ? _mm256_loadu_si256((const __m256i *)p) : _mm256_maskz_loadu_epi16(lanes(n), p);
    return _mm512_or_si512(_mm512_cvtepu16_epi32(low), _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16));
#else
    (void)pitch, (void)two;
    return n >= LANES ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi32(lanes(n), p);
#endif
}

/* Packs a strip of full width, the common case. */
INLINE void pack_full(float *dst, const int nvec, const char *p, int64_t pitch, int64_t nunit)
{
    for (int64_t u = 0; u < nunit; u++) {
        UNROLL for (int j = 0; j < nvec; j++)
            _mm512_storeu_si512(dst + j * LANES, unit_row(p + j * LANES * BYTES, pitch, LANES, true));
        UNROLL for (int i = 0; i < ELEMENTS; i++) /* hardware prefetchers do not follow such strides */
            UNROLL for (int j = 0; j < nvec * LANES * BYTES; j += 64)
                _mm_prefetch(p + (AHEAD + i) * pitch * BYTES + j, _MM_HINT_T0);
        dst += nvec * LANES;
        p += pitch * ELEMENTS * BYTES;
    }
}

static void pack_cols(float *dst, int64_t width, struct kern_cmat src, int64_t ncol, int64_t k)
{
    const char *p = src.data;
    const int64_t nfull = width == CPU_PANEL_WIDTH && ncol == width ? k / ELEMENTS : 0;
    pack_full(dst, CPU_PANEL_VECTORS, p, src.pitch, nfull);
    for (int64_t u = nfull; u * ELEMENTS < k; u++)
        for (int64_t col = 0; col < width; col += LANES)
            _mm512_mask_storeu_epi32(
                dst + u * width + col, lanes(width - col),
                unit_row(p + (u * ELEMENTS * src.pitch + col) * BYTES, src.pitch, ncol - col, k - u * ELEMENTS > 1));
}

const struct cpu_panels TABLE = { .elements = ELEMENTS,
                                  .strip = strip,
                                  .store_transposed = store_transposed,
                                  .pack_rows = pack_rows,
                                  .pack_cols = pack_cols };
