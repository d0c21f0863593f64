/* SPDX-License-Identifier: Apache-2.0 */
/* DoRA: row norms of W + scale·B·A, which is computed strip by strip, the scaling by g, and the gradient of m. */
#include "cpu/ops.h"
#include "cpu/work.h"

#include <math.h>
#include <string.h>

/* Rows per piece. They share one widened strip of A. */
enum { ROWS = 8 };

struct norm_work {
    const struct cpu_simd *simd;
    const struct kern_dora_norm *d;
};

/* Computes rows row0 … row0+nrow-1, columns col … col+n-1, of W + scale·B·A. */
static void make_strips(const struct norm_work *w, int64_t row0, int64_t nrow, int64_t col, int64_t n,
                        float strips[ROWS][CPU_STRIP])
{
    const struct kern_dora_norm *d = w->d;
    float a[CPU_STRIP], one;
    for (int64_t i = 0; i < nrow; i++)
        cpu_load_copy(w->simd, strips[i], d->w, row0 + i, col, n);
    for (int64_t k = 0; k < d->r; k++) {
        const float *of_a = cpu_load(w->simd, d->a, k, col, n, a);
        for (int64_t i = 0; i < nrow; i++)
            w->simd->add_scaled(strips[i], of_a, d->scale * *cpu_load(w->simd, d->b, row0 + i, k, 1, &one), n);
    }
}

static void norm_rows(void *ctx, int64_t piece, unsigned worker)
{
    const struct norm_work *w = ctx;
    const struct kern_dora_norm *d = w->d;
    const int64_t row0 = piece * ROWS, nrow = d->nrow - row0 < ROWS ? d->nrow - row0 : ROWS;
    float strips[ROWS][CPU_STRIP];
    double sums[ROWS] = { 0 };
    (void)worker;
    for (int64_t col = 0; col < d->ncol; col += CPU_STRIP) {
        const int64_t n = d->ncol - col < CPU_STRIP ? d->ncol - col : CPU_STRIP;
        make_strips(w, row0, nrow, col, n, strips);
        for (int64_t i = 0; i < nrow; i++)
            sums[i] += w->simd->sum_squares(strips[i], n);
    }
    for (int64_t i = 0; i < nrow; i++)
        d->norm[row0 + i] = (float)sqrt(sums[i]);
}

void cpu_dora_norm(struct kern_stream *stream, const struct kern_dora_norm *d)
{
    struct norm_work w = { stream->simd, d };
    if (!stream->status)
        kern_pool_run(stream->pool, (d->nrow + ROWS - 1) / ROWS, norm_rows, &w);
}

static void scale_strip(const struct cpu_simd *simd, void *ctx, int64_t row, int64_t col, int64_t n)
{
    const struct kern_dora_scale *d = ctx;
    float u[CPU_STRIP], bias[CPU_STRIP], add[CPU_STRIP], y[CPU_STRIP];
    const float *of_u = cpu_load(simd, d->u, row, col, n, u), *m = d->m + col, *norm = d->norm + col;
    for (int64_t j = 0; j < n; j++)
        y[j] = (m[j] / norm[j] - d->minus) * of_u[j];
    if (d->bias.data)
        simd->add(y, y, cpu_load(simd, d->bias, 0, col, n, bias), n);
    if (d->add.data)
        simd->add(y, y, cpu_load(simd, d->add, row, col, n, add), n);
    cpu_store(simd, d->y, row, col, n, y);
}

void cpu_dora_scale(struct kern_stream *stream, const struct kern_dora_scale *d)
{
    struct kern_dora_scale copy = *d;
    cpu_for_strips(stream, d->nrow, d->ncol, scale_strip, &copy);
}

static void grad_block(const struct cpu_simd *simd, void *ctx, int64_t block, int64_t row0, int64_t row1)
{
    const struct kern_dora_grad *d = ctx;
    float dy[CPU_STRIP], u[CPU_STRIP], *part = d->scratch + block * d->ncol;
    memset(part, 0, (size_t)d->ncol * sizeof(*part));
    for (int64_t row = row0; row < row1; row++)
        for (int64_t col = 0; col < d->ncol; col += CPU_STRIP) {
            const int64_t n = d->ncol - col < CPU_STRIP ? d->ncol - col : CPU_STRIP;
            const float *of_dy = cpu_load(simd, d->dy, row, col, n, dy), *of_u = cpu_load(simd, d->u, row, col, n, u);
            for (int64_t j = 0; j < n; j++)
                part[col + j] += of_dy[j] * of_u[j] / d->norm[col + j];
        }
}

void cpu_dora_grad(struct kern_stream *stream, const struct kern_dora_grad *d)
{
    struct kern_dora_grad copy = *d;
    cpu_for_blocks(stream, d->nrow, grad_block, &copy);
    cpu_fold(stream, d->dm, d->scratch, kern_row_blocks(d->nrow), d->ncol);
}
