/* SPDX-License-Identifier: Apache-2.0 */
/* Cross-entropy, one row of logits per piece. */
#include "cpu/ops.h"
#include "cpu/work.h"

#include <math.h>
#include <string.h>

static int64_t strip_of(int64_t ncol, int64_t col)
{
    return ncol - col < CPU_STRIP ? ncol - col : CPU_STRIP;
}

/* Maximum of a row; NaN if it contains one. */
static float row_max(const struct cpu_simd *simd, const struct kern_cross_entropy *e, int64_t row)
{
    float strip[CPU_STRIP], best = -INFINITY;
    for (int64_t col = 0; col < e->ncol; col += CPU_STRIP) {
        int64_t n = strip_of(e->ncol, col);
        float m = simd->max(cpu_load(simd, e->logits, row, col, n, strip), n);
        best = m > best || m != m ? m : best;
        if (best != best)
            return best;
    }
    return best;
}

static double row_sum(const struct cpu_simd *simd, const struct kern_cross_entropy *e, int64_t row, float shift)
{
    float strip[CPU_STRIP];
    double sum = 0;
    for (int64_t col = 0; col < e->ncol; col += CPU_STRIP) {
        int64_t n = strip_of(e->ncol, col);
        sum += (double)simd->sum_exp(cpu_load(simd, e->logits, row, col, n, strip), 1.0f, shift, n);
    }
    return sum;
}

/* Reads each strip of the row before writing it, because the gradient may share memory with the logits. */
static void row_grad(const struct cpu_simd *simd, const struct kern_cross_entropy *e, int64_t row, float shift,
                     double sum)
{
    float strip[CPU_STRIP];
    const int64_t target = e->target[row];
    const float scale = e->weights ? e->grad_scale * e->weights[row] : e->grad_scale;
    for (int64_t col = 0; col < e->ncol; col += CPU_STRIP) {
        int64_t n = strip_of(e->ncol, col);
        simd->exp(strip, cpu_load(simd, e->logits, row, col, n, strip), 1.0f, shift, n);
        simd->scale(strip, strip, (float)((double)scale / sum), n);
        if (target >= col && target < col + n)
            strip[target - col] -= scale;
        cpu_store(simd, e->dlogits, row, col, n, strip);
    }
}

static void skip_row(const struct kern_cross_entropy *e, int64_t row)
{
    e->loss[row] = 0;
    if (e->dlogits.data)
        memset((char *)e->dlogits.data + row * e->dlogits.pitch * kern_dtype_bytes(e->dlogits.dtype), 0,
               (size_t)(e->ncol * kern_dtype_bytes(e->dlogits.dtype)));
}

static void entropy_row(const struct cpu_simd *simd, const struct kern_cross_entropy *e, int64_t row)
{
    if (e->target[row] < 0) {
        skip_row(e, row);
        return;
    }
    float at;
    float shift = row_max(simd, e, row);
    double sum = row_sum(simd, e, row, shift);
    cpu_load_copy(simd, &at, e->logits, row, e->target[row], 1);
    e->loss[row] = (float)(log(sum) + ((double)shift - (double)at));
    if (e->dlogits.data)
        row_grad(simd, e, row, shift, sum);
}

struct entropy_work {
    const struct cpu_simd *simd;
    const struct kern_cross_entropy *e;
};

static void entropy_piece(void *ctx, int64_t piece, unsigned worker)
{
    const struct entropy_work *w = ctx;
    (void)worker;
    entropy_row(w->simd, w->e, piece);
}

void cpu_cross_entropy(struct kern_stream *stream, const struct kern_cross_entropy *e)
{
    struct entropy_work w = { stream->simd, e };
    for (int64_t i = 0; i < e->nrow && !stream->status; i++)
        if (e->target[i] >= e->ncol)
            cpu_fail(stream, KERN_ERR_ARG, "row %lld: target %d is not one of %lld", (long long)i, (int)e->target[i],
                     (long long)e->ncol);
    if (!stream->status)
        kern_pool_run(stream->pool, e->nrow, entropy_piece, &w);
}
