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

static void gate_strip(const struct cpu_simd *simd, void *ctx, int64_t row, int64_t col, int64_t n)
{
    const struct kern_gate *g = ctx;
    float x[CPU_STRIP], add[CPU_STRIP], y[CPU_STRIP];
    const float *of_x = cpu_load(simd, g->x, row, col, n, x), *of_add = cpu_load(simd, g->add, row, col, n, add);
    for (int64_t i = 0; i < n; i++)
        y[i] = of_add[i] + g->gate[col + i] * of_x[i];
    cpu_store(simd, g->y, row, col, n, y);
}

static void cpu_gate(struct kern_stream *stream, const struct kern_gate *g)
{
    struct kern_gate copy = *g;
    cpu_for_strips(stream, g->nrow, g->ncol, gate_strip, &copy);
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
