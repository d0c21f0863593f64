/* SPDX-License-Identifier: Apache-2.0 */
/* See work.h. */
#include "cpu/work.h"

#include <string.h>

/* Elements per piece: enough that the overhead of a piece is negligible, few enough that a row of a model makes
 * several. */
enum { PIECE = 16 * CPU_STRIP };

struct strips {
    const struct cpu_simd *simd;
    cpu_strip_fn fn;
    void *ctx;
    int64_t nrow, ncol, rows, cols, ncuts;
};

static int64_t min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static void run_strips(void *ctx, int64_t piece, unsigned worker)
{
    const struct strips *s = ctx;
    (void)worker;
    int64_t row0 = piece / s->ncuts * s->rows, row1 = min(row0 + s->rows, s->nrow);
    int64_t col0 = piece % s->ncuts * s->cols, col1 = min(col0 + s->cols, s->ncol);
    for (int64_t row = row0; row < row1; row++)
        for (int64_t col = col0; col < col1; col += CPU_STRIP)
            s->fn(s->simd, s->ctx, row, col, min(CPU_STRIP, col1 - col));
}

void cpu_for_strips(struct kern_stream *stream, int64_t nrow, int64_t ncol, cpu_strip_fn fn, void *ctx)
{
    if (stream->status || nrow <= 0 || ncol <= 0)
        return;
    struct strips s = { .simd = stream->simd, .fn = fn, .ctx = ctx, .nrow = nrow, .ncol = ncol };
    s.cols = min(ncol, PIECE);
    s.rows = PIECE / s.cols;
    s.ncuts = (ncol + s.cols - 1) / s.cols;
    kern_pool_run(stream->pool, (nrow + s.rows - 1) / s.rows * s.ncuts, run_strips, &s);
}

struct blocks {
    const struct cpu_simd *simd;
    cpu_block_fn fn;
    void *ctx;
    int64_t nrow;
};

static void run_block(void *ctx, int64_t piece, unsigned worker)
{
    const struct blocks *b = ctx;
    (void)worker;
    b->fn(b->simd, b->ctx, piece, piece * KERN_ROW_BLOCK, min((piece + 1) * KERN_ROW_BLOCK, b->nrow));
}

void cpu_for_blocks(struct kern_stream *stream, int64_t nrow, cpu_block_fn fn, void *ctx)
{
    if (stream->status || nrow <= 0)
        return;
    struct blocks b = { .simd = stream->simd, .fn = fn, .ctx = ctx, .nrow = nrow };
    kern_pool_run(stream->pool, kern_row_blocks(nrow), run_block, &b);
}

struct fold {
    float *dst;
    const float *parts;
    int64_t npart, ncol;
};

static void fold_strip(const struct cpu_simd *simd, void *ctx, int64_t row, int64_t col, int64_t n)
{
    const struct fold *f = ctx;
    (void)row;
    for (int64_t i = 0; i < f->npart; i++)
        simd->add(f->dst + col, f->dst + col, f->parts + i * f->ncol + col, n);
}

void cpu_fold(struct kern_stream *stream, float *dst, const float *parts, int64_t npart, int64_t ncol)
{
    struct fold f = { dst, parts, npart, ncol };
    cpu_for_strips(stream, 1, ncol, fold_strip, &f);
}

const float *cpu_load(const struct cpu_simd *simd, struct kern_cmat m, int64_t row, int64_t col, int64_t n,
                      float *strip)
{
    int64_t at = row * m.pitch + col;
    if (m.dtype == KERN_F32)
        return (const float *)m.data + at;
    simd->widen(strip, (const uint16_t *)m.data + at, n);
    return strip;
}

void cpu_load_copy(const struct cpu_simd *simd, float *dst, struct kern_cmat m, int64_t row, int64_t col, int64_t n)
{
    const float *values = cpu_load(simd, m, row, col, n, dst);
    if (values != dst)
        memcpy(dst, values, (size_t)n * sizeof(*dst));
}

float *cpu_target(struct kern_mat m, int64_t row, int64_t col, float *strip)
{
    return m.dtype == KERN_F32 ? (float *)m.data + row * m.pitch + col : strip;
}

void cpu_store(const struct cpu_simd *simd, struct kern_mat m, int64_t row, int64_t col, int64_t n, const float *values)
{
    int64_t at = row * m.pitch + col;
    if (m.dtype == KERN_BF16)
        simd->narrow((uint16_t *)m.data + at, values, n);
    else if (values != (float *)m.data + at)
        memmove((float *)m.data + at, values, (size_t)n * sizeof(*values));
}

bool cpu_check(struct kern_stream *stream, bool good, const char *what)
{
    if (!good)
        cpu_fail(stream, KERN_ERR_ARG, "%s", what);
    return good && !stream->status;
}
