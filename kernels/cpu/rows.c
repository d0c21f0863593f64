/* SPDX-License-Identifier: Apache-2.0 */
/* Sums over tokens; gather and scatter of rows and columns by index. */
#include "cpu/ops.h"
#include "cpu/work.h"

#include <string.h>

struct sum_rows {
    struct kern_cmat x;
    int64_t ncol;
    float *parts; /* (blocks, ncol) */
};

static void sum_block(const struct cpu_simd *simd, void *ctx, int64_t block, int64_t row0, int64_t row1)
{
    const struct sum_rows *s = ctx;
    float strip[CPU_STRIP], *part = s->parts + block * s->ncol;
    memset(part, 0, (size_t)s->ncol * sizeof(*part));
    for (int64_t row = row0; row < row1; row++)
        for (int64_t col = 0; col < s->ncol; col += CPU_STRIP) {
            int64_t n = s->ncol - col < CPU_STRIP ? s->ncol - col : CPU_STRIP;
            simd->add(part + col, part + col, cpu_load(simd, s->x, row, col, n, strip), n);
        }
}

void cpu_sum_rows(struct kern_stream *stream, float *dst, struct kern_cmat x, int64_t nrow, int64_t ncol,
                  float *scratch)
{
    struct sum_rows s = { x, ncol, scratch };
    cpu_for_blocks(stream, nrow, sum_block, &s);
    cpu_fold(stream, dst, scratch, kern_row_blocks(nrow), ncol);
}

void cpu_sum(struct kern_stream *stream, double *dst, const float *x, int64_t nelem)
{
    if (stream->status)
        return;
    double sum = 0;
    for (int64_t i = 0; i < nelem; i += KERN_ROW_BLOCK) {
        double part = 0;
        for (int64_t j = i; j < nelem && j < i + KERN_ROW_BLOCK; j++)
            part += (double)x[j];
        sum += part;
    }
    *dst = sum;
}

struct indexed {
    struct kern_mat dst;
    struct kern_cmat src;
    const int32_t *index;
    int64_t nrow;
};

/* Checks all indices before the pieces start, because a strip function has no stream to report an error to. */
static bool indices_fit(struct kern_stream *stream, const int32_t *index, int64_t nrow, int64_t limit)
{
    for (int64_t i = 0; i < nrow && !stream->status; i++)
        if (index[i] < 0 || index[i] >= limit)
            cpu_fail(stream, KERN_ERR_ARG, "row %lld: index %d is not one of %lld", (long long)i, (int)index[i],
                     (long long)limit);
    return !stream->status;
}

static void gather_strip(const struct cpu_simd *simd, void *ctx, int64_t row, int64_t col, int64_t n)
{
    const struct indexed *g = ctx;
    float strip[CPU_STRIP];
    cpu_store(simd, g->dst, row, col, n, cpu_load(simd, g->src, g->index[row], col, n, strip));
}

void cpu_gather_rows(struct kern_stream *stream, struct kern_mat dst, struct kern_cmat src, const int32_t *index,
                     int64_t nrow, int64_t ncol, int64_t nsrc)
{
    struct indexed g = { dst, src, index, nrow };
    if (indices_fit(stream, index, nrow, nsrc))
        cpu_for_strips(stream, nrow, ncol, gather_strip, &g);
}

static void scatter_strip(const struct cpu_simd *simd, void *ctx, int64_t row, int64_t col, int64_t n)
{
    const struct indexed *g = ctx;
    float strip[CPU_STRIP];
    cpu_store(simd, g->dst, g->index[row], col, n, cpu_load(simd, g->src, row, col, n, strip));
}

void cpu_scatter_rows(struct kern_stream *stream, struct kern_mat dst, struct kern_cmat src, const int32_t *index,
                      int64_t nrow, int64_t ncol, int64_t ndst)
{
    struct indexed g = { dst, src, index, nrow };
    if (indices_fit(stream, index, nrow, ndst))
        cpu_for_strips(stream, nrow, ncol, scatter_strip, &g);
}

/* Columns per piece of scatter_add. A piece processes the rows in order, because two rows may add to the same place. */
enum { SCATTER_COLS = 64 };

struct scatter {
    const struct cpu_simd *simd;
    struct indexed g;
    int64_t ncol;
};

static void scatter_cols(void *ctx, int64_t piece, unsigned worker)
{
    const struct scatter *s = ctx;
    float strip[SCATTER_COLS];
    (void)worker;
    int64_t col = piece * SCATTER_COLS, n = s->ncol - col < SCATTER_COLS ? s->ncol - col : SCATTER_COLS;
    for (int64_t i = 0; i < s->g.nrow; i++) {
        float *to = (float *)s->g.dst.data + s->g.index[i] * s->g.dst.pitch + col;
        s->simd->add(to, to, cpu_load(s->simd, s->g.src, i, col, n, strip), n);
    }
}

void cpu_scatter_add(struct kern_stream *stream, struct kern_mat dst, struct kern_cmat src, const int32_t *index,
                     int64_t nrow, int64_t ncol, int64_t ndst)
{
    struct scatter s = { stream->simd, { dst, src, index, nrow }, ncol };
    if (cpu_check(stream, dst.dtype == KERN_F32, "scatter_add: gradients are added in fp32") &&
        indices_fit(stream, index, nrow, ndst))
        kern_pool_run(stream->pool, (ncol + SCATTER_COLS - 1) / SCATTER_COLS, scatter_cols, &s);
}

static float element(struct kern_cmat m, int64_t row, int64_t col)
{
    int64_t at = row * m.pitch + col;
    if (m.dtype == KERN_F32)
        return ((const float *)m.data)[at];
    uint32_t bits = (uint32_t)((const uint16_t *)m.data)[at] << 16;
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

static void gather_cols_strip(const struct cpu_simd *simd, void *ctx, int64_t row, int64_t col, int64_t n)
{
    const struct indexed *g = ctx;
    float strip[CPU_STRIP];
    for (int64_t j = 0; j < n; j++)
        strip[j] = element(g->src, col + j, g->index[row]);
    cpu_store(simd, g->dst, row, col, n, strip);
}

void cpu_gather_cols(struct kern_stream *stream, struct kern_mat dst, struct kern_cmat src, const int32_t *index,
                     int64_t nrow, int64_t ncol, int64_t nsrc)
{
    struct indexed g = { dst, src, index, nrow };
    if (indices_fit(stream, index, nrow, nsrc))
        cpu_for_strips(stream, nrow, ncol, gather_cols_strip, &g);
}

/* A piece is one row of dst. */
static void scatter_row(void *ctx, int64_t piece, unsigned worker)
{
    const struct indexed *g = ctx;
    float *row = (float *)g->dst.data + piece * g->dst.pitch;
    (void)worker;
    for (int64_t i = 0; i < g->nrow; i++)
        row[g->index[i]] += element(g->src, i, piece);
}

void cpu_scatter_add_cols(struct kern_stream *stream, struct kern_mat dst, struct kern_cmat src, const int32_t *index,
                          int64_t nrow, int64_t ncol, int64_t ndst)
{
    struct indexed g = { dst, src, index, nrow };
    if (cpu_check(stream, dst.dtype == KERN_F32, "scatter_add_cols: gradients are added in fp32") &&
        indices_fit(stream, index, nrow, ndst))
        kern_pool_run(stream->pool, ncol, scatter_row, &g);
}
