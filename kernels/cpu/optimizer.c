/* SPDX-License-Identifier: Apache-2.0 */
/* The AdamW step, and sums of squares. */
#include "cpu/ops.h"
#include "cpu/work.h"

#include <math.h>

struct adamw_work {
    const struct kern_adamw_range *range;
    struct cpu_adamw c;
};

static void adamw_strip(const struct cpu_simd *simd, void *ctx, int64_t row, int64_t col, int64_t n)
{
    const struct adamw_work *w = ctx;
    const struct kern_adamw_range *r = w->range;
    (void)row;
    simd->adamw(r->p + col, r->m + col, r->v + col, r->grad + col, &w->c, n);
    if (r->rounded)
        simd->narrow((uint16_t *)r->rounded + col, r->p + col, n);
}

void cpu_adamw(struct kern_stream *stream, const struct kern_adamw *a)
{
    double bias1 = 1 - pow(a->beta1, (double)a->t), bias2 = 1 - pow(a->beta2, (double)a->t);
    if (!cpu_check(stream, a->t >= 1, "adamw: steps count from 1"))
        return;
    for (size_t i = 0; i < a->nranges; i++) {
        const struct kern_adamw_range *r = &a->ranges[i];
        struct adamw_work w = {
            .range = r,
            .c = {
                .grad_scale = (float)a->grad_scale,
                .keep = (float)(1 - a->lr * r->weight_decay),
                .one_minus_beta1 = (float)(1 - a->beta1),
                .beta2 = (float)a->beta2,
                .one_minus_beta2 = (float)(1 - a->beta2),
                .step_size = (float)(a->lr / bias1),
                .inv_sqrt_bias2 = (float)(1 / sqrt(bias2)),
                .eps = (float)a->eps,
            },
        };
        cpu_for_strips(stream, 1, r->nelem, adamw_strip, &w);
    }
}

struct squares_work {
    double *out;
    struct kern_cmat x;
    int64_t ncol;
};

static void squares_block(const struct cpu_simd *simd, void *ctx, int64_t block, int64_t row0, int64_t row1)
{
    const struct squares_work *w = ctx;
    float strip[CPU_STRIP];
    (void)block;
    for (int64_t row = row0; row < row1; row++) {
        double sum = 0;
        for (int64_t col = 0; col < w->ncol; col += CPU_STRIP) {
            int64_t n = w->ncol - col < CPU_STRIP ? w->ncol - col : CPU_STRIP;
            sum += simd->sum_squares(cpu_load(simd, w->x, row, col, n, strip), n);
        }
        w->out[row] = sum;
    }
}

void cpu_sum_squares(struct kern_stream *stream, double *out, const struct kern_rows *matrices, size_t nmatrices)
{
    for (size_t i = 0; i < nmatrices; i++) {
        struct squares_work w = { out, matrices[i].x, matrices[i].ncol };
        cpu_for_blocks(stream, matrices[i].nrow, squares_block, &w);
        out += matrices[i].nrow;
    }
}
