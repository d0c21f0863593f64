/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of panels.h for bf16, on processors with AMX. A tile register holds 16 rows of 64 bytes: 16 x 16 sums,
 * 16 rows of 16 units of A, or 16 units of 16 columns of B, which is how strips of B are packed anyway. Two by two
 * registers of sums take each register of A and of B twice.
 * One instruction adds 16 units of K (Intel's manual, TDPBF16PS): it sums the low and the high elements of the units
 * apart, each in order, adds both, and adds that to C; subnormal numbers count as 0. So the bits depend on where K is
 * cut into 16 units, and every plan cuts it there (grain). */
#define PANELS_BF16 1
#include "cpu/panels.h"

#include "cpu/simd/panels_pack.h"
#include "cpu/simd/panels_store.h"

#include <immintrin.h>
#include <string.h>

enum { SIDE = 16, BOTH = 2 * SIDE, ROW_BYTES = 64, SUMS = 0, OF_A = 4, OF_B = 6 };

/* As LDTILECFG reads it. */
struct tile_config {
    uint8_t palette, start_row, zero[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

/* Configures the registers for blocks of nrow rows, at most BOTH. All of a register of B is used. */
static void configure(int64_t nrow)
{
    const uint8_t high = (uint8_t)(nrow < SIDE ? nrow : SIDE), low = (uint8_t)(nrow - high);
    struct tile_config c = { .palette = 1 };
    for (int i = 0; i < 8; i++) {
        const bool second = i == SUMS + 2 || i == SUMS + 3 || i == OF_A + 1;
        c.rows[i] = i >= OF_B ? SIDE : second ? low : high;
        c.row_bytes[i] = c.rows[i] ? ROW_BYTES : 0;
    }
    __asm__ volatile("" : : "r"(&c) : "memory"); /* the intrinsic does not say that it reads all of c */
    _tile_loadconfig(&c);
}

/* The sums of a block of rows; the registers are 0 1 / 2 3. nr and nc, 1 or 2, are constants wherever these are
 * inlined.
 */
INLINE void clear_sums(const int nr, const int nc)
{
    _tile_zero(0);
    if (nc > 1)
        _tile_zero(1);
    if (nr > 1)
        _tile_zero(2);
    if (nr > 1 && nc > 1)
        _tile_zero(3);
}

INLINE void load_sums(const int nr, const int nc, const float *from, int64_t pitch)
{
    const long row = (long)pitch * 4;
    _tile_loadd(0, from, row);
    if (nc > 1)
        _tile_loadd(1, from + SIDE, row);
    if (nr > 1)
        _tile_loadd(2, from + SIDE * pitch, row);
    if (nr > 1 && nc > 1)
        _tile_loadd(3, from + SIDE * pitch + SIDE, row);
}

INLINE void store_sums(const int nr, const int nc, float *to, int64_t pitch)
{
    const long row = (long)pitch * 4;
    _tile_stored(0, to, row);
    if (nc > 1)
        _tile_stored(1, to + SIDE, row);
    if (nr > 1)
        _tile_stored(2, to + SIDE * pitch, row);
    if (nr > 1 && nc > 1)
        _tile_stored(3, to + SIDE * pitch + SIDE, row);
}

/* A block whose sums are known, and whose rows from `row` on are not finished yet. They are finished while the next
 * block is multiplied, which does not use the same units of the processor. */
struct pending {
    const struct cpu_panel_out *out;
    int64_t row, end, col;
    int nc;
    const float *sums; /* of `row`: (BOTH) a row */
    _Alignas(64) float held[BOTH][BOTH];
};

static void finish_pending(struct pending *w, int64_t nrow)
{
    for (int64_t i = 0; i < nrow && w->row < w->end; i++) {
        __m512 v[2] = { _mm512_load_ps(w->sums), w->nc > 1 ? _mm512_load_ps(w->sums + LANES) : _mm512_setzero_ps() };
        if (w->nc > 1)
            finish(2, w->out, w->row, w->col, v);
        else
            finish(1, w->out, w->row, w->col, v);
        w->sums += BOTH;
        w->row++;
    }
}

/* Adds one product to the sums. B streams past the first cache, so that the rows of A stay in it for all strips. */
INLINE void multiply(const int nr, const int nc, const struct cpu_panel_part *p, int64_t row, int64_t col,
                     struct pending *w)
{
    const char *a = p->a + row * p->row;
    const float *b = p->b + col;
    const long stride = (long)p->row, pitch = (long)p->pitch * 4;
    for (int64_t u = 0; u < p->nunit; u += SIDE) {
        _tile_stream_loadd(6, b, pitch);
        _tile_loadd(4, a, stride);
        _tile_dpbf16ps(0, 4, 6);
        if (nc > 1) {
            _tile_stream_loadd(7, b + SIDE, pitch);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (nr > 1) {
            _tile_loadd(5, a + SIDE * stride, stride);
            _tile_dpbf16ps(2, 5, 6);
        }
        if (nr > 1 && nc > 1)
            _tile_dpbf16ps(3, 5, 7);
        if (w->row < w->end)
            finish_pending(w, 2);
        a += ROW_BYTES;
        b += SIDE * p->pitch;
    }
}

/* Returns true if the sums are what is to be stored, in whole registers. */
static bool stores_sums(const struct cpu_panel_out *out, int64_t col, int nc)
{
    return out->c.dtype == KERN_F32 && out->alpha == 1 && !out->bias && !out->add.data && out->ncol - col >= nc * LANES;
}

INLINE void block(const int nr, const int nc, int64_t row, int64_t nrow, int64_t col,
                  const struct cpu_panel_part *parts, int nparts, const struct cpu_panel_out *out, struct pending *w)
{
    if (out->start)
        load_sums(nr, nc, out->start + row * out->start_pitch + col, out->start_pitch);
    else
        clear_sums(nr, nc);
    for (const struct cpu_panel_part *p = parts; p < parts + nparts; p++)
        multiply(nr, nc, p, row, col, w);
    finish_pending(w, BOTH);
    if (stores_sums(out, col, nc)) {
        store_sums(nr, nc, (float *)out->c.data + row * out->c.pitch + col, out->c.pitch);
        return;
    }
    store_sums(nr, nc, w->held[0], BOTH);
    w->out = out;
    w->row = row;
    w->end = row + nrow;
    w->col = col;
    w->nc = nc;
    w->sums = w->held[0];
}

/* Rows row … row+nrow-1, at most BOTH, of all vectors of a strip. */
INLINE void rows_of_strip(const int nr, int64_t row, int64_t nrow, int nvec, const struct cpu_panel_part *parts,
                          int nparts, const struct cpu_panel_out *out, struct pending *w)
{
    int64_t col = 0;
    for (; col + BOTH <= nvec * LANES; col += BOTH)
        block(nr, 2, row, nrow, col, parts, nparts, out, w);
    if (col < nvec * LANES)
        block(nr, 1, row, nrow, col, parts, nparts, out, w);
}

/* Rows that do not fill a block. */
static void last_rows(int64_t row, int64_t nrow, int nvec, const struct cpu_panel_part *parts, int nparts,
                      const struct cpu_panel_out *out, struct pending *w)
{
    configure(nrow);
    if (nrow > SIDE)
        rows_of_strip(2, row, nrow, nvec, parts, nparts, out, w);
    else
        rows_of_strip(1, row, nrow, nvec, parts, nparts, out, w);
    configure(BOTH);
}

/* Expects and leaves the registers configured for whole blocks. */
static void strip(int64_t nrow, int nvec, const struct cpu_panel_part *parts, int nparts,
                  const struct cpu_panel_out *out)
{
    struct pending w;
    w.row = w.end = 0;
    int64_t row = 0;
    for (; row + BOTH <= nrow; row += BOTH)
        rows_of_strip(2, row, BOTH, nvec, parts, nparts, out, &w);
    if (row < nrow)
        last_rows(row, nrow - row, nvec, parts, nparts, out, &w);
    finish_pending(&w, BOTH);
}

static void enter(void)
{
    configure(BOTH);
}

/* Idle registers that hold values would be saved at every context switch. oneDNN configures them before it uses them.
 */
static void leave(void)
{
    _tile_release();
}

/* Sixteen units of 16 columns from element l of K on; those from k on are 0. */
INLINE void load_columns(__m512i r[LANES], struct kern_cmat src, int64_t col, int64_t ncol, int64_t l, int64_t k)
{
    const char *p = (const char *)src.data + (l * src.pitch + col) * 2;
    UNROLL for (int u = 0; u < LANES; u++)
    {
        const int64_t left = k - l - ELEMENTS * u;
        r[u] = left > 0 ? unit_row(p + (int64_t)u * ELEMENTS * src.pitch * 2, src.pitch, ncol - col, left > 1, 2)
                        : _mm512_setzero_si512();
    }
}

static void pack_transposed(float *dst, int64_t pitch, struct kern_cmat src, int64_t ncol, int64_t k)
{
    for (int64_t l = 0; l < k; l += LANES * ELEMENTS)
        for (int64_t col = 0; col < ncol; col += LANES) {
            __m512i r[LANES];
            load_columns(r, src, col, ncol, l, k);
            transpose(r);
            UNROLL for (int i = 0; i < LANES; i++) if (col + i < ncol)
                _mm512_storeu_si512(dst + (col + i) * pitch + l / ELEMENTS, r[i]);
        }
}

const struct cpu_panels cpu_panels_amx = { .elements = ELEMENTS,
                                           .grain = SIDE,
                                           .rows = BOTH,
                                           .enter = enter,
                                           .leave = leave,
                                           .strip = strip,
                                           .store_transposed = store_transposed,
                                           .pack_rows = pack_rows,
                                           .pack_cols = pack_cols,
                                           .pack_transposed = pack_transposed };
