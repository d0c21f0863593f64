/* SPDX-License-Identifier: Apache-2.0 */
/* Modulated LayerNorm, gates, SiLU, and pictures of twice the size. */
#include "cpu/image.h"

#include "cpu/work.h"

#include <math.h>

enum { ROWS = 16 };

static int64_t strip_of(int64_t ncol, int64_t col)
{
    return ncol - col < CPU_STRIP ? ncol - col : CPU_STRIP;
}

struct modulate_work {
    const struct cpu_simd *simd;
    const struct kern_modulate *m;
};

/* Two passes over the row: a difference of large sums would lose the variance. */
static void statistics(const struct modulate_work *w, int64_t row, double *mean, double *rstd)
{
    const struct kern_modulate *m = w->m;
    float strip[CPU_STRIP];
    double sum = 0, squares = 0;
    for (int64_t col = 0; col < m->ncol; col += CPU_STRIP) {
        const int64_t n = strip_of(m->ncol, col);
        const float *x = cpu_load(w->simd, m->x, row, col, n, strip);
        for (int64_t i = 0; i < n; i++)
            sum += (double)x[i];
    }
    *mean = sum / (double)m->ncol;
    for (int64_t col = 0; col < m->ncol; col += CPU_STRIP) {
        const int64_t n = strip_of(m->ncol, col);
        const float *x = cpu_load(w->simd, m->x, row, col, n, strip);
        for (int64_t i = 0; i < n; i++)
            squares += ((double)x[i] - *mean) * ((double)x[i] - *mean);
    }
    *rstd = 1 / sqrt(squares / (double)m->ncol + (double)m->eps);
}

static void modulate_rows(void *ctx, int64_t piece, unsigned worker)
{
    const struct modulate_work *w = ctx;
    const struct kern_modulate *m = w->m;
    float strip[CPU_STRIP], y[CPU_STRIP];
    (void)worker;
    for (int64_t row = piece * ROWS; row < (piece + 1) * ROWS && row < m->nrow; row++) {
        double mean, rstd;
        statistics(w, row, &mean, &rstd);
        for (int64_t col = 0; col < m->ncol; col += CPU_STRIP) {
            const int64_t n = strip_of(m->ncol, col);
            const float *x = cpu_load(w->simd, m->x, row, col, n, strip), a = (float)mean, b = (float)rstd;
            for (int64_t i = 0; i < n; i++)
                y[i] = (x[i] - a) * b * (1.0f + m->scale[col + i]) + m->shift[col + i];
            cpu_store(w->simd, m->y, row, col, n, y);
        }
    }
}

static void cpu_modulate(struct kern_stream *stream, const struct kern_modulate *m)
{
    struct modulate_work w = { stream->simd, m };
    if (!stream->status)
        kern_pool_run(stream->pool, (m->nrow + ROWS - 1) / ROWS, modulate_rows, &w);
}

struct modulate_grad_work {
    const struct cpu_simd *simd;
    const struct kern_modulate_grad *g;
};

/* Means of g and of g·xh over a row. */
static void grad_means(const struct modulate_grad_work *w, int64_t row, double mean, double rstd, double *of_g,
                       double *of_product)
{
    const struct kern_modulate_grad *g = w->g;
    float x[CPU_STRIP], dy[CPU_STRIP];
    double sum = 0, product = 0;
    for (int64_t col = 0; col < g->ncol; col += CPU_STRIP) {
        const int64_t n = strip_of(g->ncol, col);
        const float *of_x = cpu_load(w->simd, g->x, row, col, n, x), *of_dy = cpu_load(w->simd, g->dy, row, col, n, dy);
        for (int64_t i = 0; i < n; i++) {
            const double one = (double)(of_dy[i] * (1.0f + g->scale[col + i]));
            sum += one;
            product += one * ((double)of_x[i] - mean) * rstd;
        }
    }
    *of_g = sum / (double)g->ncol;
    *of_product = product / (double)g->ncol;
}

static void modulate_grad_row(const struct modulate_grad_work *w, int64_t row)
{
    const struct kern_modulate_grad *g = w->g;
    const struct kern_modulate as = { .ncol = g->ncol, .x = g->x, .eps = g->eps };
    float x[CPU_STRIP], dy[CPU_STRIP], add[CPU_STRIP], dx[CPU_STRIP];
    double mean, rstd, of_g, of_product;
    statistics(&(struct modulate_work){ w->simd, &as }, row, &mean, &rstd);
    grad_means(w, row, mean, rstd, &of_g, &of_product);
    const float a = (float)mean, b = (float)rstd, c = (float)of_g, d = (float)of_product;
    for (int64_t col = 0; col < g->ncol; col += CPU_STRIP) {
        const int64_t n = strip_of(g->ncol, col);
        const float *of_x = cpu_load(w->simd, g->x, row, col, n, x), *of_dy = cpu_load(w->simd, g->dy, row, col, n, dy),
                    *of_add = cpu_load(w->simd, g->add, row, col, n, add);
        for (int64_t i = 0; i < n; i++)
            dx[i] = of_add[i] + b * (of_dy[i] * (1.0f + g->scale[col + i]) - c - (of_x[i] - a) * b * d);
        cpu_store(w->simd, g->dx, row, col, n, dx);
    }
}

static void modulate_grad_rows(void *ctx, int64_t piece, unsigned worker)
{
    const struct modulate_grad_work *w = ctx;
    (void)worker;
    for (int64_t row = piece * ROWS; row < (piece + 1) * ROWS && row < w->g->nrow; row++)
        modulate_grad_row(w, row);
}

static void cpu_modulate_grad(struct kern_stream *stream, const struct kern_modulate_grad *g)
{
    struct modulate_grad_work w = { stream->simd, g };
    if (!stream->status)
        kern_pool_run(stream->pool, (g->nrow + ROWS - 1) / ROWS, modulate_grad_rows, &w);
}

static void gate_strip(const struct cpu_simd *simd, void *ctx, int64_t row, int64_t col, int64_t n)
{
    const struct kern_gate *g = ctx;
    float x[CPU_STRIP], add[CPU_STRIP], y[CPU_STRIP];
    const float *of_x = cpu_load(simd, g->x, row, col, n, x);
    for (int64_t i = 0; i < n; i++)
        y[i] = g->gate[col + i] * of_x[i];
    if (g->add.data)
        simd->add(y, cpu_load(simd, g->add, row, col, n, add), y, n);
    cpu_store(simd, g->y, row, col, n, y);
}

static void cpu_gate(struct kern_stream *stream, const struct kern_gate *g)
{
    struct kern_gate copy = *g;
    cpu_for_strips(stream, g->nrow, g->ncol, gate_strip, &copy);
}

struct error_work {
    const struct cpu_simd *simd;
    const struct kern_square_error *e;
};

static void error_rows(void *ctx, int64_t piece, unsigned worker)
{
    const struct error_work *w = ctx;
    const struct kern_square_error *e = w->e;
    float x[CPU_STRIP], target[CPU_STRIP], d[CPU_STRIP];
    (void)worker;
    for (int64_t row = piece * ROWS; row < (piece + 1) * ROWS && row < e->nrow; row++) {
        double sum = 0;
        for (int64_t col = 0; col < e->ncol; col += CPU_STRIP) {
            const int64_t n = strip_of(e->ncol, col);
            const float *of_x = cpu_load(w->simd, e->x, row, col, n, x),
                        *of_target = cpu_load(w->simd, e->target, row, col, n, target);
            for (int64_t i = 0; i < n; i++)
                d[i] = of_x[i] - of_target[i];
            sum += w->simd->sum_squares(d, n);
            w->simd->scale(d, d, 2 * e->grad_factor, n);
            if (e->dx.data)
                cpu_store(w->simd, e->dx, row, col, n, d);
        }
        e->loss[row] = (float)((double)e->factor * sum);
    }
}

static void cpu_square_error(struct kern_stream *stream, const struct kern_square_error *e)
{
    struct error_work w = { stream->simd, e };
    if (!stream->status)
        kern_pool_run(stream->pool, (e->nrow + ROWS - 1) / ROWS, error_rows, &w);
}

struct pair {
    struct kern_mat y;
    struct kern_cmat x;
    int64_t width, nchannel; /* enlarge: of x */
};

static void silu_strip(const struct cpu_simd *simd, void *ctx, int64_t row, int64_t col, int64_t n)
{
    static const float ones[CPU_STRIP] = { [0 ... CPU_STRIP - 1] = 1 };
    const struct pair *p = ctx;
    float x[CPU_STRIP], y[CPU_STRIP];
    simd->swiglu(y, cpu_load(simd, p->x, row, col, n, x), ones, n);
    cpu_store(simd, p->y, row, col, n, y);
}

static void cpu_silu(struct kern_stream *stream, struct kern_mat y, struct kern_cmat x, int64_t nrow, int64_t ncol)
{
    struct pair p = { .y = y, .x = x };
    cpu_for_strips(stream, nrow, ncol, silu_strip, &p);
}

/* A row of the strips is a row of pixels of y. */
static void enlarge_strip(const struct cpu_simd *simd, void *ctx, int64_t row, int64_t col, int64_t n)
{
    const struct pair *p = ctx;
    const int64_t pixel = col / p->nchannel, at = col % p->nchannel;
    float strip[CPU_STRIP];
    for (int64_t done = 0, from = at, to = pixel; done < n; to++, from = 0) {
        const int64_t part = p->nchannel - from < n - done ? p->nchannel - from : n - done;
        cpu_store(simd, p->y, row * 2 * p->width + to, from, part,
                  cpu_load(simd, p->x, row / 2 * p->width + to / 2, from, part, strip));
        done += part;
    }
}

static void cpu_enlarge(struct kern_stream *stream, struct kern_mat y, struct kern_cmat x, int64_t height,
                        int64_t width, int64_t nchannel)
{
    struct pair p = { y, x, width, nchannel };
    cpu_for_strips(stream, 2 * height, 2 * width * nchannel, enlarge_strip, &p);
}

#define ROW(name, type) .name = cpu_##name,
const struct kern_image_ops cpu_image_ops = { KERN_IMAGE_OPS(ROW) };
