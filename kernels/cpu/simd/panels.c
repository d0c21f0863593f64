/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of panels.h, for AVX-512. Compiled once for fp32 and once for bf16 (PANELS_BF16). They must not know of
 * threads or of how a product is cut. */
#include "cpu/panels.h"

#include "cpu/simd/panels_pack.h"
#include "cpu/simd/panels_store.h"

#include <immintrin.h>
#include <string.h>

#if PANELS_BF16
#define TABLE cpu_panels_bf16
#else
#define TABLE cpu_panels_f32
#endif
enum { MOST_ROWS = 12, MOST_VECTORS = CPU_PANEL_VECTORS };

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

/* Adds one product to the sums of a tile. fetch: B is read in place, and hardware prefetchers do not follow its rows.
 * nrow and nvec are constants wherever this is inlined, so the sums are registers. One pointer serves three rows,
 * because an address can encode 0, 1 and 2 times the stride. */
INLINE void multiply(const int nrow, const int nvec, const struct cpu_panel_part *p, int64_t row, const bool fetch,
                     __m512 sum[][MOST_VECTORS])
{
    const char *a = p->a + row * p->row;
    const float *b = p->b;
    const int64_t stride = p->row, unit = p->unit, pitch = fetch ? p->pitch : nvec * LANES;
    for (int64_t u = 0; u < p->nunit; u++) {
        __m512i v[MOST_VECTORS];
        UNROLL for (int j = 0; j < nvec; j++) v[j] = _mm512_loadu_si512(b + j * LANES);
        if (fetch)
            UNROLL for (int j = 0; j < nvec; j++) _mm_prefetch(b + AHEAD * pitch + j * LANES, _MM_HINT_T0);
        const char *at = a;
        UNROLL for (int i = 0; i < nrow; i++)
        {
            const __m512i x = spread(at + i % 3 * stride);
            UNROLL for (int j = 0; j < nvec; j++) sum[i][j] = step(sum[i][j], x, v[j]);
            at += i % 3 == 2 ? 3 * stride : 0;
        }
        a += unit;
        b += pitch;
    }
}

INLINE void tile(const int nrow, const int nvec, int64_t row, const struct cpu_panel_part *parts, int nparts,
                 const struct cpu_panel_out *out)
{
    __m512 sum[MOST_ROWS][MOST_VECTORS];
    if (out->start)
        UNROLL for (int i = 0; i < nrow; i++) UNROLL for (int j = 0; j < nvec; j++) sum[i][j] =
            _mm512_loadu_ps(out->start + (row + i) * out->start_pitch + j * LANES);
    else
        UNROLL for (int i = 0; i < nrow; i++) UNROLL for (int j = 0; j < nvec; j++) sum[i][j] = _mm512_setzero_ps();
    for (const struct cpu_panel_part *p = parts; p < parts + nparts; p++)
        if (p->pitch == nvec * LANES)
            multiply(nrow, nvec, p, row, false, sum);
        else
            multiply(nrow, nvec, p, row, true, sum);
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

const struct cpu_panels TABLE = { .elements = ELEMENTS,
                                  .grain = 1,
                                  .rows = 2 * CPU_PANEL_GROUP,
                                  .strip = strip,
                                  .store_transposed = store_transposed,
                                  .pack_rows = pack_rows,
                                  .pack_cols = pack_cols };
