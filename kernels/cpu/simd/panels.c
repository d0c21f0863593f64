/* The kernels of panels.h. Compiled once for fp32 and once for bf16 (PANELS_BF16), with AVX-512. They must not know of threads or of how a product is cut. */
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
enum { LANES = CPU_PANEL_LANES, MOST_ROWS = 12, MOST_VECTORS = CPU_PANEL_VECTORS };


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

/* The first n lanes. */
INLINE __mmask16 lanes(int64_t n)
{
    return n >= LANES ? 0xffff : n <= 0 ? 0 : (__mmask16)((1u << n) - 1);
}

INLINE __m512 load_some(struct kern_cmat m, int64_t row, int64_t col, int64_t n)
{
    if (m.dtype == KERN_F32)
        return _mm512_maskz_loadu_ps(lanes(n), (const float *)m.data + row * m.pitch + col);
    const uint16_t *p = (const uint16_t *)m.data + row * m.pitch + col;
    const __m256i bits = n >= LANES ? _mm256_loadu_si256((const __m256i *)p) : _mm256_maskz_loadu_epi16(lanes(n), p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

/* As cpu_simd.narrow rounds. */
INLINE __m256i narrow(__m512 v)
{
    const __m512i bits = _mm512_castps_si512(v), one = _mm512_set1_epi32(1);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), one);
    __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    rounded = _mm512_mask_or_epi32(rounded, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}

INLINE void store_some(struct kern_mat m, int64_t row, int64_t col, int64_t n, __m512 v)
{
    if (m.dtype == KERN_F32) {
        float *p = (float *)m.data + row * m.pitch + col;
        if (n >= LANES)
            _mm512_storeu_ps(p, v);
        else
            _mm512_mask_storeu_ps(p, lanes(n), v);
        return;
    }
    uint16_t *p = (uint16_t *)m.data + row * m.pitch + col;
    if (n >= LANES)
        _mm256_storeu_si256((__m256i *)p, narrow(v));
    else
        _mm256_mask_storeu_epi16(p, lanes(n), narrow(v));
}

INLINE void finish(const struct cpu_panel_out *out, int64_t row, int64_t col, __m512 sum)
{
    const int64_t n = out->ncol - col;
    sum = _mm512_mul_ps(sum, _mm512_set1_ps(out->alpha));
    if (out->bias)
        sum = _mm512_add_ps(sum, _mm512_loadu_ps(out->bias + col));
    if (out->add.data)
        sum = _mm512_add_ps(sum, load_some(out->add, row, col, n));
    store_some(out->c, row, col, n, sum);
}

/* nrow and nvec are constants where this is inlined: the sums are registers. Rows come three to a pointer, as that is what an address can say. */
INLINE void tile(const int nrow, const int nvec, int64_t row, const struct cpu_panel_part *parts, int nparts, const struct cpu_panel_out *out)
{
    __m512 sum[MOST_ROWS][MOST_VECTORS];
    UNROLL for (int i = 0; i < nrow; i++)
        UNROLL for (int j = 0; j < nvec; j++)
            sum[i][j] = _mm512_setzero_ps();
    for (const struct cpu_panel_part *p = parts; p < parts + nparts; p++) {
        const char *a = p->a + row * p->row;
        const float *b = p->b;
        const int64_t stride = p->row, unit = p->unit;
        for (int64_t u = 0; u < p->nunit; u++) {
            __m512i v[MOST_VECTORS];
            UNROLL for (int j = 0; j < nvec; j++)
                v[j] = _mm512_load_si512(b + j * LANES);
            const char *at = a;
            UNROLL for (int i = 0; i < nrow; i++) {
                const __m512i x = spread(at + i % 3 * stride);
                UNROLL for (int j = 0; j < nvec; j++)
                    sum[i][j] = step(sum[i][j], x, v[j]);
                at += i % 3 == 2 ? 3 * stride : 0;
            }
            a += unit;
            b += nvec * LANES;
        }
    }
    float done[MOST_ROWS * MOST_VECTORS * LANES] __attribute__((aligned(64)));
    UNROLL for (int i = 0; i < nrow; i++)
        UNROLL for (int j = 0; j < nvec; j++)
            _mm512_store_ps(done + (i * nvec + j) * LANES, sum[i][j]);
    for (int64_t i = 0; i < nrow; i++)
        for (int64_t j = 0; j < nvec; j++)
            finish(out, row + i, j * LANES, _mm512_load_ps(done + (i * nvec + j) * LANES));
}

/* The largest tile for a width, then what is left of the rows. */
#define STRIP(name, rows, nvec)                                                                                                                                \
    static void name(int64_t nrow, const struct cpu_panel_part *parts, int nparts, const struct cpu_panel_out *out)                                            \
    {                                                                                                                                                          \
        int64_t row = 0;                                                                                                                                       \
        for (; row + rows <= nrow; row += rows)                                                                                                                \
            tile(rows, nvec, row, parts, nparts, out);                                                                                                         \
        for (; row + 4 <= nrow; row += 4)                                                                                                                      \
            tile(4, nvec, row, parts, nparts, out);                                                                                                            \
        if (row + 2 <= nrow) {                                                                                                                                 \
            tile(2, nvec, row, parts, nparts, out);                                                                                                            \
            row += 2;                                                                                                                                          \
        }                                                                                                                                                      \
        if (row < nrow)                                                                                                                                        \
            tile(1, nvec, row, parts, nparts, out);                                                                                                            \
    }

STRIP(strip1, 12, 1)
STRIP(strip2, 12, 2)
STRIP(strip3, 8, 3)
STRIP(strip4, 6, 4)

static void strip(int64_t nrow, int nvec, const struct cpu_panel_part *parts, int nparts, const struct cpu_panel_out *out)
{
    static void (*const strips[])(int64_t, const struct cpu_panel_part *, int, const struct cpu_panel_out *) = {strip1, strip2, strip3, strip4};
    strips[nvec - 1](nrow, parts, nparts, out);
}

/* Sixteen vectors become the columns that they were the rows of: pairs of lanes, then of pairs, then of quarters. */
INLINE void transpose(__m512i r[LANES])
{
    __m512i t[LANES];
    UNROLL for (int i = 0; i < LANES; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    UNROLL for (int i = 0; i < LANES; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    UNROLL for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    UNROLL for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
        r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

static void turn(int64_t nrow, float *sums, const struct cpu_panel_out *out)
{
    for (int64_t col = 0; col < out->ncol; col += LANES)
        for (int64_t row = 0; row < nrow; row += LANES) {
            __m512i r[LANES];
            UNROLL for (int i = 0; i < LANES; i++)
                r[i] = col + i < out->ncol ? _mm512_loadu_si512(sums + (col + i) * CPU_PANEL_WIDTH + row) : _mm512_setzero_si512();
            transpose(r);
            UNROLL for (int i = 0; i < LANES; i++)
                if (row + i < nrow)
                    finish(out, row + i, col, _mm512_castsi512_ps(r[i]));
        }
}

/* Sixteen units of a row, of which n elements are there. */
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
            UNROLL for (int i = 0; i < LANES; i++)
                r[i] = load_units((const char *)src.data + ((col + i) * src.pitch + u * ELEMENTS) * BYTES, col + i < ncol ? k - u * ELEMENTS : 0);
            transpose(r);
            UNROLL for (int i = 0; i < LANES; i++)
                if (u + i < nunit)
                    _mm512_storeu_si512(dst + (u + i) * width + col, r[i]);
        }
}

/* Units of a row of columns, of which n are there; left: rows from here on. */
INLINE __m512i unit_row(const char *p, int64_t pitch, int64_t n, int64_t left)
{
#if PANELS_BF16
    const __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes(n), p));
    if (left < 2)
        return low;
    return _mm512_or_si512(low, _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes(n), p + pitch * BYTES)), 16));
#else
    (void)pitch, (void)left;
    return _mm512_maskz_loadu_epi32(lanes(n), p);
#endif
}

static void pack_cols(float *dst, int64_t width, struct kern_cmat src, int64_t ncol, int64_t k)
{
    const char *p = src.data;
    for (int64_t left = k; left > 0; left -= ELEMENTS) {
        for (int64_t col = 0; col < width; col += LANES)
            _mm512_mask_storeu_epi32(dst + col, lanes(width - col), unit_row(p + col * BYTES, src.pitch, ncol - col, left));
        dst += width;
        p += src.pitch * ELEMENTS * BYTES;
    }
}

const struct cpu_panels TABLE = {.elements = ELEMENTS, .strip = strip, .turn = turn, .pack_rows = pack_rows, .pack_cols = pack_cols};
