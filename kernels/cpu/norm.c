/* SPDX-License-Identifier: Apache-2.0 */
/* RMSNorm and its gradient. Each group (a row, or a head of one) is read twice in strips: for its sums, then for its
 * result. */
#include "cpu/ops.h"
#include "cpu/work.h"

#include <math.h>
#include <string.h>

static int64_t strip_of(int64_t ncol, int64_t col)
{
    return ncol - col < CPU_STRIP ? ncol - col : CPU_STRIP;
}

static float group_rstd(const struct cpu_simd *simd, const struct kern_rmsnorm *r, int64_t row, int64_t col0)
{
    float x[CPU_STRIP];
    double sum = 0;
    for (int64_t col = 0; col < r->ncol; col += CPU_STRIP) {
        int64_t n = strip_of(r->ncol, col);
        const float *values = cpu_load(simd, r->x, row, col0 + col, n, x);
        sum += (double)simd->dot(values, values, n);
    }
    return (float)(1.0 / sqrt(sum / (double)r->ncol + (double)r->eps));
}

static void norm_group(const struct cpu_simd *simd, const struct kern_rmsnorm *r, int64_t row, int64_t group)
{
    float x[CPU_STRIP], gamma[CPU_STRIP], y[CPU_STRIP], rstd = group_rstd(simd, r, row, group * r->ncol);
    for (int64_t col = 0; col < r->ncol; col += CPU_STRIP) {
        int64_t n = strip_of(r->ncol, col), at = group * r->ncol + col;
        float *out = cpu_target(r->y, row, at, y);
        simd->norm(out, cpu_load(simd, r->x, row, at, n, x), cpu_load(simd, r->gamma, 0, col, n, gamma), rstd, n);
        cpu_store(simd, r->y, row, at, n, out);
    }
    if (r->rstd)
        r->rstd[row * r->ngroup + group] = rstd;
}

/* Rows per piece. */
enum { ROWS = 16 };

struct norm_work {
    const struct cpu_simd *simd;
    const struct kern_rmsnorm *r;
};

static void norm_rows(void *ctx, int64_t piece, unsigned worker)
{
    const struct norm_work *w = ctx;
    (void)worker;
    for (int64_t row = piece * ROWS; row < (piece + 1) * ROWS && row < w->r->nrow; row++)
        for (int64_t group = 0; group < w->r->ngroup; group++)
            norm_group(w->simd, w->r, row, group);
}

void cpu_rmsnorm(struct kern_stream *stream, const struct kern_rmsnorm *r)
{
    struct norm_work w = { stream->simd, r };
    if (!stream->status)
        kern_pool_run(stream->pool, (r->nrow + ROWS - 1) / ROWS, norm_rows, &w);
}

/* Returns Σ g·x over a group. Adds the group's contribution to dgamma unless that is NULL. */
static double grad_sums(const struct cpu_simd *simd, const struct kern_rmsnorm_grad *r, int64_t row, int64_t col0,
                        float rstd, float *dgamma)
{
    float x[CPU_STRIP], dy[CPU_STRIP], gamma[CPU_STRIP];
    double sum = 0;
    for (int64_t col = 0; col < r->ncol; col += CPU_STRIP) {
        int64_t n = strip_of(r->ncol, col);
        const float *xs = cpu_load(simd, r->x, row, col0 + col, n, x),
                    *dys = cpu_load(simd, r->dy, row, col0 + col, n, dy);
        if (r->dx.data)
            sum += (double)simd->dot3(dys, cpu_load(simd, r->gamma, 0, col, n, gamma), xs, n);
        if (dgamma)
            simd->norm_gamma(dgamma + col, dys, xs, rstd, n);
    }
    return sum;
}

static void grad_group(const struct cpu_simd *simd, const struct kern_rmsnorm_grad *r, int64_t row, int64_t group,
                       float *dgamma)
{
    float x[CPU_STRIP], dy[CPU_STRIP], gamma[CPU_STRIP], add[CPU_STRIP], dx[CPU_STRIP];
    float rstd = r->rstd[row * r->ngroup + group];
    double sum = grad_sums(simd, r, row, group * r->ncol, rstd, dgamma);
    /* rstd · xh · mean(g·xh) = x · rstd³ · Σ g·x / ncol */
    float c = (float)(sum * (double)rstd * (double)rstd * (double)rstd / (double)r->ncol);
    for (int64_t col = 0; col < r->ncol && r->dx.data; col += CPU_STRIP) {
        int64_t n = strip_of(r->ncol, col), at = group * r->ncol + col;
        simd->norm_grad(dx, cpu_load(simd, r->dy, row, at, n, dy), cpu_load(simd, r->gamma, 0, col, n, gamma),
                        cpu_load(simd, r->x, row, at, n, x), rstd, c, n);
        if (r->add.data)
            simd->add(dx, cpu_load(simd, r->add, row, at, n, add), dx, n);
        cpu_store(simd, r->dx, row, at, n, dx);
    }
}

static void grad_block(const struct cpu_simd *simd, void *ctx, int64_t block, int64_t row0, int64_t row1)
{
    const struct kern_rmsnorm_grad *r = ctx;
    float *dgamma = r->dgamma ? r->scratch + block * r->ncol : NULL;
    if (dgamma)
        memset(dgamma, 0, (size_t)r->ncol * sizeof(*dgamma));
    for (int64_t row = row0; row < row1; row++)
        for (int64_t group = 0; group < r->ngroup; group++)
            grad_group(simd, r, row, group, dgamma);
}

void cpu_rmsnorm_grad(struct kern_stream *stream, const struct kern_rmsnorm_grad *r)
{
    struct kern_rmsnorm_grad copy = *r;
    cpu_for_blocks(stream, r->nrow, grad_block, &copy);
    if (r->dgamma)
        cpu_fold(stream, r->dgamma, r->scratch, kern_row_blocks(r->nrow), r->ncol);
}
