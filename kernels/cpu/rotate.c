/* Rotary positions applied to the heads of a row, in place. */
#include "cpu/ops.h"
#include "cpu/work.h"

enum { ROWS = 16 };

struct rope_work {
    const struct cpu_simd *simd;
    const struct kern_rope_apply *r;
};

static void rotate_head(const struct cpu_simd *simd, const struct kern_rope_apply *r, int64_t row, int64_t col)
{
    float low[CPU_STRIP], high[CPU_STRIP], sign = r->inverse ? -1.0f : 1.0f;
    const int64_t half = r->dim / 2, at = r->positions[row] * half;
    for (int64_t i = 0; i < half; i += CPU_STRIP) {
        int64_t n = half - i < CPU_STRIP ? half - i : CPU_STRIP;
        cpu_load_copy(simd, low, kern_const(r->x), row, col + i, n);
        cpu_load_copy(simd, high, kern_const(r->x), row, col + half + i, n);
        simd->rotate(low, high, r->cosines + at + i, r->sines + at + i, sign, n);
        cpu_store(simd, r->x, row, col + i, n, low);
        cpu_store(simd, r->x, row, col + half + i, n, high);
    }
}

static void rotate_rows(void *ctx, int64_t piece, unsigned worker)
{
    const struct rope_work *w = ctx;
    (void)worker;
    for (int64_t row = piece * ROWS; row < (piece + 1) * ROWS && row < w->r->nrow; row++)
        for (int64_t head = 0; head < w->r->nhead; head++)
            rotate_head(w->simd, w->r, row, head * w->r->dim);
}

void cpu_rope(struct kern_stream *stream, const struct kern_rope_apply *r)
{
    struct rope_work w = {stream->simd, r};
    if (cpu_check(stream, r->dim % 2 == 0, "rope: the head's dimension must be even"))
        kern_pool_run(stream->pool, (r->nrow + ROWS - 1) / ROWS, rotate_rows, &w);
}
