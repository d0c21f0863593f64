/* SPDX-License-Identifier: Apache-2.0 */
/* The weighted bias after an expert's last product, on the CPU. */
#include "cpu/experts.h"

#include "cpu/work.h"

#include <string.h>

static void bias_strip(const struct cpu_simd *simd, void *ctx, int64_t row, int64_t col, int64_t n)
{
    const struct kern_expert_bias *b = ctx;
    const int64_t choice = cpu_choice_of(b->choices, row);
    float y[CPU_STRIP], part[CPU_STRIP], strip[CPU_STRIP];
    if (choice < 0)
        return;
    simd->scale(part, cpu_load(simd, b->bias, 0, col, n, strip), b->weights[choice], n);
    simd->add(y, cpu_load(simd, kern_const(b->y), row, col, n, strip), part, n);
    cpu_store(simd, b->y, row, col, n, y);
}

void cpu_expert_bias(struct kern_stream *stream, const struct kern_expert_bias *b)
{
    struct kern_expert_bias copy = *b;
    cpu_for_strips(stream, b->nrow, b->ncol, bias_strip, &copy);
}

/* One row; returns its part of the weight's gradient, and adds to that of the bias (or NULL). */
static float bias_grad_row(const struct cpu_simd *simd, const struct kern_expert_bias_grad *g, int64_t row,
                           float weight, float *dbias)
{
    float sum = 0, dy_strip[CPU_STRIP], strip[CPU_STRIP];
    for (int64_t col = 0; col < g->ncol; col += CPU_STRIP) {
        const int64_t n = g->ncol - col < CPU_STRIP ? g->ncol - col : CPU_STRIP;
        const float *dy = cpu_load(simd, g->dy, row, col, n, dy_strip);
        sum += simd->dot(dy, cpu_load(simd, g->bias, 0, col, n, strip), n);
        if (dbias) {
            simd->scale(strip, dy, weight, n);
            simd->add(dbias + col, dbias + col, strip, n);
        }
    }
    return sum;
}

static void bias_grad_block(const struct cpu_simd *simd, void *ctx, int64_t block, int64_t row0, int64_t row1)
{
    const struct kern_expert_bias_grad *g = ctx;
    float *dbias = g->dbias ? g->scratch + block * g->ncol : NULL;
    if (dbias)
        memset(dbias, 0, (size_t)g->ncol * sizeof *dbias);
    for (int64_t row = row0; row < row1; row++) {
        const int64_t choice = cpu_choice_of(g->choices, row);
        if (choice >= 0)
            g->dweights[choice] += bias_grad_row(simd, g, row, g->weights[choice], dbias);
    }
}

void cpu_expert_bias_grad(struct kern_stream *stream, const struct kern_expert_bias_grad *g)
{
    struct kern_expert_bias_grad copy = *g;
    cpu_for_blocks(stream, g->nrow, bias_grad_block, &copy);
    if (g->dbias)
        cpu_fold(stream, g->dbias, g->scratch, kern_row_blocks(g->nrow), g->ncol);
}
