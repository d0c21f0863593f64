/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary positions applied to the heads of a row, in place. */
#include "cpu/ops.h"
#include "cpu/work.h"

enum { ROWS = 16 };

struct rope_work {
    const struct cpu_simd *simd;
    const struct kern_rope_apply *r;
};

/* Rotates adjacent features of a head, half a strip of pairs at a time. */
static void rotate_adjacent(const struct cpu_simd *simd, const struct kern_rope_apply *r, int64_t row, int64_t col)
{
    enum { PAIRS = CPU_STRIP / 2 };
    float strip[CPU_STRIP], low[PAIRS], high[PAIRS], sign = r->inverse ? -1.0f : 1.0f;
    const int64_t half = r->rotary / 2, at = r->positions[row] * half;
    for (int64_t i = 0; i < half; i += PAIRS) {
        const int64_t n = half - i < PAIRS ? half - i : PAIRS;
        cpu_load_copy(simd, strip, kern_const(r->x), row, col + 2 * i, 2 * n);
        for (int64_t j = 0; j < n; j++)
            low[j] = strip[2 * j], high[j] = strip[2 * j + 1];
        simd->rotate(low, high, r->cosines + at + i, r->sines + at + i, sign, n);
        for (int64_t j = 0; j < n; j++)
            strip[2 * j] = low[j], strip[2 * j + 1] = high[j];
        cpu_store(simd, r->x, row, col + 2 * i, 2 * n, strip);
    }
}

/* Rotates a head that is wider than a strip, one strip of each half at a time. */
static void rotate_wide(const struct cpu_simd *simd, const struct kern_rope_apply *r, int64_t row, int64_t col)
{
    float low[CPU_STRIP], high[CPU_STRIP], sign = r->inverse ? -1.0f : 1.0f;
    const int64_t half = r->rotary / 2, at = r->positions[row] * half;
    for (int64_t i = 0; i < half; i += CPU_STRIP) {
        int64_t n = half - i < CPU_STRIP ? half - i : CPU_STRIP;
        cpu_load_copy(simd, low, kern_const(r->x), row, col + i, n);
        cpu_load_copy(simd, high, kern_const(r->x), row, col + half + i, n);
        simd->rotate(low, high, r->cosines + at + i, r->sines + at + i, sign, n);
        cpu_store(simd, r->x, row, col + i, n, low);
        cpu_store(simd, r->x, row, col + half + i, n, high);
    }
}

/* Rotates heads head … head+n-1 of a row, which fit in a strip: widened and rounded together. */
static void rotate_heads(const struct cpu_simd *simd, const struct kern_rope_apply *r, int64_t row, int64_t head,
                         int64_t n)
{
    float strip[CPU_STRIP], sign = r->inverse ? -1.0f : 1.0f;
    const int64_t half = r->rotary / 2, at = r->positions[row] * half;
    cpu_load_copy(simd, strip, kern_const(r->x), row, head * r->dim, n * r->dim);
    for (int64_t i = 0; i < n; i++)
        simd->rotate(strip + i * r->dim, strip + i * r->dim + half, r->cosines + at, r->sines + at, sign, half);
    cpu_store(simd, r->x, row, head * r->dim, n * r->dim, strip);
}

static void rotate_row(const struct cpu_simd *simd, const struct kern_rope_apply *r, int64_t row)
{
    const int64_t together = CPU_STRIP / r->dim;
    if (r->adjacent) {
        for (int64_t head = 0; head < r->nhead; head++)
            rotate_adjacent(simd, r, row, head * r->dim);
        return;
    }
    for (int64_t head = 0; head < r->nhead && !together; head++)
        rotate_wide(simd, r, row, head * r->dim);
    for (int64_t head = 0; head < r->nhead && together; head += together)
        rotate_heads(simd, r, row, head, r->nhead - head < together ? r->nhead - head : together);
}

static void rotate_rows(void *ctx, int64_t piece, unsigned worker)
{
    const struct rope_work *w = ctx;
    (void)worker;
    for (int64_t row = piece * ROWS; row < (piece + 1) * ROWS && row < w->r->nrow; row++)
        rotate_row(w->simd, w->r, row);
}

void cpu_rope(struct kern_stream *stream, const struct kern_rope_apply *r)
{
    struct rope_work w = { stream->simd, r };
    if (cpu_check(stream, r->rotary > 0 && r->rotary % 2 == 0 && r->rotary <= r->dim,
                  "rope: an even number of a head's features is wanted"))
        kern_pool_run(stream->pool, (r->nrow + ROWS - 1) / ROWS, rotate_rows, &w);
}
