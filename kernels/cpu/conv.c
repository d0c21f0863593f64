/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions with 3 × 3 taps as products: each tap multiplies the picture, shifted by its place, and adds to the sum
 * in fp32. A piece of work is a band of rows, copied with its neighbours and with zeros around the picture, so that a
 * shift is an offset. The shape alone cuts the bands and orders the sums. */
#include "cpu/image.h"
#include "cpu/matmul.h"
#include "cpu/stream.h"
#include "cpu/work.h"

#include <string.h>

enum { TAPS = 9, BAND = 2048 }; /* BAND: pixels of a band, which has at least one row */

struct band {
    int64_t rows, cols;       /* of y */
    int64_t in_rows, in_cols; /* of the copy of x */
};

struct conv {
    const struct kern_conv *c;
    struct kern_stream *stream;
    enum kern_dtype compute; /* of the operands */
    char *weights;           /* (TAPS, nout, nin) in `compute` */
    struct band band;        /* the last one may have fewer rows */
};

static struct band band_of(const struct kern_conv *c)
{
    const int64_t cols = c->width / c->stride, height = c->height / c->stride, most = BAND / (cols + 2);
    struct band b = { .rows = most < 1 ? 1 : most < height ? most : height, .cols = cols };
    b.in_rows = (b.rows - 1) * c->stride + 3;
    b.in_cols = c->stride == 1 ? cols + 2 : 2 * cols + 1;
    return b;
}

static enum kern_dtype compute_of(const struct kern_conv *c)
{
    return c->x.dtype == KERN_BF16 && cpu_matmul_bf16() ? KERN_BF16 : KERN_F32;
}

size_t cpu_conv_scratch(struct kern_stream *stream, const struct kern_conv *c)
{
    (void)stream;
    return (size_t)(TAPS * c->nin * c->nout * kern_dtype_bytes(compute_of(c)));
}

/* Weights of output channel `piece`: from (nin, taps) to a row of each tap. */
static void pack(void *ctx, int64_t piece, unsigned worker)
{
    const struct conv *v = ctx;
    const struct kern_conv *c = v->c;
    const struct kern_cmat from = { c->weight, c->nin * TAPS, c->x.dtype };
    float strip[TAPS], one;
    (void)worker;
    for (int64_t in = 0; in < c->nin; in++) {
        const float *w = cpu_load(v->stream->simd, from, piece, in * TAPS, TAPS, strip);
        for (int64_t tap = 0; tap < TAPS; tap++) {
            const struct kern_mat to = { v->weights, c->nin, v->compute };
            one = w[tap];
            cpu_store(v->stream->simd, to, tap * c->nout + piece, in, 1, &one);
        }
    }
}

/* Row `row` of x, or zeros beyond it, with zeros at its sides. */
static void copy_row(const struct conv *v, char *to, int64_t row)
{
    const struct kern_conv *c = v->c;
    const int64_t width = kern_dtype_bytes(v->compute), left = c->stride == 1, nin = c->nin;
    const struct kern_mat copy = { to, v->band.in_cols * nin, v->compute };
    float strip[CPU_STRIP];
    memset(to, 0, (size_t)(v->band.in_cols * nin * width));
    if (row < 0 || row >= c->height)
        return;
    const struct kern_cmat rows = { c->x.data, c->width * nin, c->x.dtype };
    for (int64_t at = 0; at < c->width * nin; at += CPU_STRIP) {
        const int64_t n = c->width * nin - at < CPU_STRIP ? c->width * nin - at : CPU_STRIP;
        cpu_store(v->stream->simd, copy, 0, left * nin + at, n, cpu_load(v->stream->simd, rows, row, at, n, strip));
    }
}

/* sum (n, nout) += or = the pixels from `x` on, every stride-th, times a tap. */
static int multiply(const struct conv *v, unsigned worker, int64_t tap, int64_t n, const char *x, float *sum)
{
    const struct kern_conv *c = v->c;
    const struct cpu_matmul shape = { .m = n,
                                      .n = c->nout,
                                      .k = c->nin,
                                      .lda = c->stride * c->nin,
                                      .ldb = c->nin,
                                      .ldc = c->nout,
                                      .trans_b = true,
                                      .accumulate = tap > 0,
                                      .in = v->compute,
                                      .out = KERN_F32 };
    char message[KERN_MESSAGE_BYTES];
    const int rc = cpu_matmul_run(v->stream->matmuls, worker, &shape, x,
                                  v->weights + tap * c->nin * c->nout * kern_dtype_bytes(v->compute), sum, message);
    return rc == KERN_OK ? rc : cpu_fail(v->stream, rc, "%s", message);
}

/* With stride 1 all rows are one product, which also gives two columns between rows that nobody wants. */
static int multiply_band(const struct conv *v, unsigned worker, int64_t rows, const char *x, float *sums)
{
    const struct kern_conv *c = v->c;
    const struct band *b = &v->band;
    const int64_t width = c->nin * kern_dtype_bytes(v->compute), together = c->stride == 1 ? rows : 1;
    int rc = KERN_OK;
    for (int64_t row = 0; row < rows; row += together)
        for (int64_t tap = 0; tap < TAPS && rc == KERN_OK; tap++) {
            const int64_t at = (row * c->stride + tap / 3) * b->in_cols + tap % 3,
                          n = c->stride == 1 ? rows * b->in_cols - 2 : b->cols;
            rc = multiply(v, worker, tap, n, x + at * width, sums + row * b->cols * c->nout);
        }
    return rc;
}

static void store_row(const struct conv *v, int64_t row, const float *sums)
{
    const struct kern_conv *c = v->c;
    const struct cpu_simd *simd = v->stream->simd;
    float strip[CPU_STRIP];
    for (int64_t pixel = 0; pixel < v->band.cols; pixel++)
        for (int64_t at = 0; at < c->nout; at += CPU_STRIP) {
            const int64_t n = c->nout - at < CPU_STRIP ? c->nout - at : CPU_STRIP;
            simd->add(strip, sums + pixel * c->nout + at, c->bias + at, n);
            cpu_store(simd, c->y, row * v->band.cols + pixel, at, n, strip);
        }
}

static void run_band(void *ctx, int64_t piece, unsigned worker)
{
    const struct conv *v = ctx;
    const struct kern_conv *c = v->c;
    const struct band *b = &v->band;
    const int64_t first = piece * b->rows, left = c->height / c->stride - first, rows = left < b->rows ? left : b->rows,
                  row_nbytes = b->in_cols * c->nin * kern_dtype_bytes(v->compute), skipped = c->stride == 1 ? 2 : 0;
    float *sums = v->stream->scratch[worker].data;
    char *x = (char *)(sums + b->rows * (b->cols + skipped) * c->nout);
    for (int64_t i = 0; i < (rows - 1) * c->stride + 3; i++)
        copy_row(v, x + i * row_nbytes, first * c->stride + i - (c->stride == 1));
    if (multiply_band(v, worker, rows, x, sums) != KERN_OK)
        return;
    for (int64_t row = 0; row < rows; row++)
        store_row(v, first + row, sums + row * (b->cols + skipped) * c->nout);
}

void cpu_conv(struct kern_stream *stream, const struct kern_conv *c)
{
    struct conv v = { .c = c, .stream = stream, .compute = compute_of(c), .weights = c->scratch };
    if (!cpu_check(stream,
                   c->nin > 0 && c->nout > 0 && (c->stride == 1 || c->stride == 2) && c->height % c->stride == 0 &&
                       c->width % c->stride == 0,
                   "conv: a stride of 1, or one of 2 over even sides, is wanted") ||
        c->height <= 0 || c->width <= 0)
        return;
    v.band = band_of(c);
    const int64_t height = c->height / c->stride;
    if (!cpu_reserve(stream,
                     (size_t)(v.band.rows * (v.band.cols + 2) * c->nout + v.band.in_rows * v.band.in_cols * c->nin) *
                         sizeof(float)))
        return;
    const int threads = cpu_matmul_enter();
    kern_pool_run(stream->pool, c->nout, pack, &v);
    kern_pool_run(stream->pool, (height + v.band.rows - 1) / v.band.rows, run_band, &v);
    cpu_matmul_leave(threads);
}
