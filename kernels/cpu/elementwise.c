/* SPDX-License-Identifier: Apache-2.0 */
/* Casts, sums of matrices, SwiGLU, dropout and uniform numbers. */
#include "cpu/ops.h"
#include "cpu/work.h"

/* Operands of an element-wise kernel; each function below uses some of them. */
struct operands {
    struct kern_mat y, y2, y3;
    struct kern_cmat a, b, c;
    float factor;
    const struct kern_dropout *dropout;
};

/* Rows first … first+n-1 of a matrix with one column, whose elements may lie apart: a strip of them costs as one of a
 * row, where a strip for each row would cost more than its element. */
static void take_column(const struct cpu_simd *simd, struct kern_cmat m, int64_t first, int64_t n, float *strip)
{
    uint16_t narrow[CPU_STRIP];
    for (int64_t i = 0; i < n && m.dtype == KERN_F32; i++)
        strip[i] = ((const float *)m.data)[(first + i) * m.pitch];
    for (int64_t i = 0; i < n && m.dtype == KERN_BF16; i++)
        narrow[i] = ((const uint16_t *)m.data)[(first + i) * m.pitch];
    if (m.dtype == KERN_BF16)
        simd->widen(strip, narrow, n);
}

static void put_column(const struct cpu_simd *simd, struct kern_mat m, int64_t first, int64_t n, const float *strip)
{
    uint16_t narrow[CPU_STRIP];
    if (m.dtype == KERN_BF16)
        simd->narrow(narrow, strip, n);
    for (int64_t i = 0; i < n && m.dtype == KERN_BF16; i++)
        ((uint16_t *)m.data)[(first + i) * m.pitch] = narrow[i];
    for (int64_t i = 0; i < n && m.dtype == KERN_F32; i++)
        ((float *)m.data)[(first + i) * m.pitch] = strip[i];
}

static void cast_column(const struct cpu_simd *simd, void *ctx, int64_t row, int64_t first, int64_t n)
{
    const struct operands *o = ctx;
    float strip[CPU_STRIP];
    (void)row;
    take_column(simd, o->a, first, n, strip);
    put_column(simd, o->y, first, n, strip);
}

static void add_column(const struct cpu_simd *simd, void *ctx, int64_t row, int64_t first, int64_t n)
{
    const struct operands *o = ctx;
    float a[CPU_STRIP], b[CPU_STRIP];
    (void)row;
    take_column(simd, o->a, first, n, a);
    take_column(simd, o->b, first, n, b);
    simd->add(a, a, b, n);
    put_column(simd, o->y, first, n, a);
}

static void cast_strip(const struct cpu_simd *simd, void *ctx, int64_t row, int64_t col, int64_t n)
{
    const struct operands *o = ctx;
    float strip[CPU_STRIP];
    cpu_store(simd, o->y, row, col, n, cpu_load(simd, o->a, row, col, n, strip));
}

void cpu_cast(struct kern_stream *stream, struct kern_mat dst, struct kern_cmat src, int64_t nrow, int64_t ncol)
{
    struct operands o = { .y = dst, .a = src };
    if (ncol == 1)
        cpu_for_strips(stream, 1, nrow, cast_column, &o);
    else
        cpu_for_strips(stream, nrow, ncol, cast_strip, &o);
}

static void add_strip(const struct cpu_simd *simd, void *ctx, int64_t row, int64_t col, int64_t n)
{
    const struct operands *o = ctx;
    float a[CPU_STRIP], b[CPU_STRIP], y[CPU_STRIP], *out = cpu_target(o->y, row, col, y);
    simd->add(out, cpu_load(simd, o->a, row, col, n, a), cpu_load(simd, o->b, row, col, n, b), n);
    cpu_store(simd, o->y, row, col, n, out);
}

void cpu_add(struct kern_stream *stream, struct kern_mat dst, struct kern_cmat a, struct kern_cmat b, int64_t nrow,
             int64_t ncol)
{
    struct operands o = { .y = dst, .a = a, .b = b };
    if (ncol == 1)
        cpu_for_strips(stream, 1, nrow, add_column, &o);
    else
        cpu_for_strips(stream, nrow, ncol, add_strip, &o);
}

static void scale_strip(const struct cpu_simd *simd, void *ctx, int64_t row, int64_t col, int64_t n)
{
    const struct operands *o = ctx;
    float a[CPU_STRIP], y[CPU_STRIP], *out = cpu_target(o->y, row, col, y);
    simd->scale(out, cpu_load(simd, o->a, row, col, n, a), o->factor, n);
    cpu_store(simd, o->y, row, col, n, out);
}

void cpu_scale(struct kern_stream *stream, struct kern_mat dst, struct kern_cmat src, float factor, int64_t nrow,
               int64_t ncol)
{
    struct operands o = { .y = dst, .a = src, .factor = factor };
    cpu_for_strips(stream, nrow, ncol, scale_strip, &o);
}

static void swiglu_strip(const struct cpu_simd *simd, void *ctx, int64_t row, int64_t col, int64_t n)
{
    const struct operands *o = ctx;
    float gate[CPU_STRIP], up[CPU_STRIP], y[CPU_STRIP], *out = cpu_target(o->y, row, col, y);
    simd->swiglu(out, cpu_load(simd, o->a, row, col, n, gate), cpu_load(simd, o->b, row, col, n, up), n);
    cpu_store(simd, o->y, row, col, n, out);
}

void cpu_swiglu(struct kern_stream *stream, struct kern_mat y, struct kern_cmat gate, struct kern_cmat up, int64_t nrow,
                int64_t ncol)
{
    struct operands o = { .y = y, .a = gate, .b = up };
    cpu_for_strips(stream, nrow, ncol, swiglu_strip, &o);
}

static void swiglu_grad_strip(const struct cpu_simd *simd, void *ctx, int64_t row, int64_t col, int64_t n)
{
    const struct operands *o = ctx;
    float gate[CPU_STRIP], up[CPU_STRIP], dy[CPU_STRIP], dgate[CPU_STRIP], dup[CPU_STRIP], y[CPU_STRIP];
    const float *a = cpu_load(simd, o->a, row, col, n, gate), *b = cpu_load(simd, o->b, row, col, n, up);
    /* Computed into separate strips, because the results may overwrite operands. */
    simd->swiglu_grad(dgate, dup, a, b, cpu_load(simd, o->c, row, col, n, dy), n);
    if (o->y3.data) {
        simd->swiglu(y, a, b, n);
        cpu_store(simd, o->y3, row, col, n, y);
    }
    cpu_store(simd, o->y, row, col, n, dgate);
    cpu_store(simd, o->y2, row, col, n, dup);
}

void cpu_swiglu_grad(struct kern_stream *stream, const struct kern_swiglu_grad *g)
{
    struct operands o = { .y = g->dgate, .y2 = g->dup, .y3 = g->y, .a = g->gate, .b = g->up, .c = g->dy };
    cpu_for_strips(stream, g->nrow, g->ncol, swiglu_grad_strip, &o);
}

static void dropout_strip(const struct cpu_simd *simd, void *ctx, int64_t row, int64_t col, int64_t n)
{
    const struct operands *o = ctx;
    const struct kern_dropout *d = o->dropout;
    float a[CPU_STRIP], y[CPU_STRIP], *out = cpu_target(o->y, row, col, y);
    uint64_t index = (uint64_t)(d->token0 + row) * (uint64_t)d->width + (uint64_t)col;
    simd->dropout(out, cpu_load(simd, o->a, row, col, n, a), d->p, 1.0f / (1.0f - d->p), &d->rng, index, n);
    cpu_store(simd, o->y, row, col, n, out);
}

void cpu_dropout(struct kern_stream *stream, struct kern_mat y, struct kern_cmat x, int64_t nrow, int64_t ncol,
                 const struct kern_dropout *dropout)
{
    const struct kern_dropout now = kern_dropout_now(*dropout);
    struct operands o = { .y = y, .a = x, .dropout = &now };
    if (dropout->p > 0 && cpu_check(stream, dropout->p < 1, "dropout: p must be below 1"))
        cpu_for_strips(stream, nrow, ncol, dropout_strip, &o);
    else
        cpu_cast(stream, y, x, nrow, ncol);
}

struct uniform {
    float *dst, low, range;
    struct kern_philox rng;
    uint64_t index0;
};

static void uniform_strip(const struct cpu_simd *simd, void *ctx, int64_t row, int64_t col, int64_t n)
{
    const struct uniform *u = ctx;
    (void)simd, (void)row;
    uint32_t key[2] = { (uint32_t)u->rng.seed, (uint32_t)(u->rng.seed >> 32) }, out[4] = { 0 };
    for (int64_t i = col; i < col + n; i++) {
        uint64_t index = u->index0 + (uint64_t)i;
        if (i == col || index % 4 == 0) {
            uint32_t counter[4] = { (uint32_t)(index / 4), (uint32_t)(index / 4 >> 32), u->rng.step, u->rng.name };
            kern_philox4x32(counter, key, out);
        }
        u->dst[i] = u->low + u->range * ((float)(out[index % 4] >> 8) * 0x1p-24f);
    }
}

void cpu_uniform(struct kern_stream *stream, float *dst, int64_t nelem, struct kern_philox rng, uint64_t index0,
                 float low, float high)
{
    struct uniform u = { dst, low, high - low, rng, index0 };
    cpu_for_strips(stream, 1, nelem, uniform_strip, &u);
}
