/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions with 3 × 3 taps as products of the pixels' surroundings, laid out some pixels at a time: a row holds the
 * channels of the first tap, then those of the second, and so on. The weights are laid out likewise. */
#include "cuda/images.h"
#include "cuda/product.cuh"
#include "cuda/vec.cuh"

namespace {

/* Pixels of a product: so many that tiles of 128 × 128 occupy a large device, within so many bytes. */
constexpr int64_t MOST_PIXELS = 1 << 14, MOST_BYTES = 48 << 20;

enum { TAPS = 9, ALIGNMENT = 256 };

/* Scratch: the weights, the surroundings, and products that wait in fp32 for bias and rounding. */
struct layout {
    int64_t npixel; /* of a product, at most */
    size_t around, sums, nbytes;
};

size_t aligned_nbytes(int64_t nelem, enum kern_dtype dtype)
{
    return ((size_t)(nelem * kern_dtype_bytes(dtype)) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

int64_t pixels_of(const struct kern_conv *c)
{
    return c->height / c->stride * (c->width / c->stride);
}

/* Depends on the shape alone; so do the bits. */
struct layout layout_of(const struct kern_conv *c)
{
    const enum kern_dtype dtype = c->x.dtype;
    const int64_t ncol = TAPS * c->nin, nsum = dtype == KERN_F32 ? 0 : c->nout, all = pixels_of(c),
                  fit = MOST_BYTES / (ncol * kern_dtype_bytes(dtype) + nsum * (int64_t)sizeof(float)),
                  most = fit < 1             ? 1
                         : fit < MOST_PIXELS ? fit
                                             : MOST_PIXELS;
    struct layout l;
    l.npixel = all < most ? all : most;
    l.around = aligned_nbytes(ncol * c->nout, dtype);
    l.sums = l.around + aligned_nbytes(l.npixel * ncol, dtype);
    l.nbytes = l.sums + aligned_nbytes(l.npixel * nsum, KERN_F32);
    return l;
}

/* (nout, nin, TAPS) to (nout, TAPS, nin). */
struct weight_op {
    struct kern_mat to;
    struct kern_cmat from;
    uint32_t nin;
    template <types K> __device__ void at(int64_t row, int64_t col, int n, bool whole) const
    {
        f8 w = {};
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            const uint32_t at = (uint32_t)col + i;
            w.v[i] = i < n ? load1<K>(from, row, (int64_t)(at % nin) * TAPS + at / nin) : 0.0f;
        }
        store8<K>(to, row, col, n, whole, w);
    }
};

/* Rows are pixels of y from `first` on. */
struct around_op {
    struct kern_mat to;
    struct kern_conv c;
    int64_t first;
    /* Of the eight, one tap has all if channels are a multiple of eight. */
    template <types K> __device__ void at(int64_t row, int64_t col, int n, bool whole) const
    {
        const uint32_t nin = (uint32_t)c.nin;
        if (whole && nin % WIDTH == 0) {
            store8<K>(to, row, col, n, true, surrounding<K>(row, (uint32_t)col / nin, (uint32_t)col % nin, n, true));
            return;
        }
        for (int i = 0; i < n; i++) {
            const uint32_t at = (uint32_t)col + i;
            store1<K>(to, row, at, surrounding<K>(row, at / nin, at % nin, 1, false).v[0]);
        }
    }
    /* n channels of a tap; zeros beyond the picture. */
    template <types K>
    __device__ __forceinline__ f8 surrounding(int64_t row, uint32_t tap, uint32_t channel, int n, bool whole) const
    {
        const int stride = (int)c.stride, before = stride == 1;
        const uint32_t pixel = (uint32_t)(first + row), width = (uint32_t)(c.width / c.stride);
        const int down = (int)(pixel / width) * stride + (int)tap / 3 - before,
                  right = (int)(pixel % width) * stride + (int)tap % 3 - before;
        if (down < 0 || right < 0 || down >= c.height || right >= c.width)
            return f8();
        return load8<K>(c.x, down * c.width + right, channel, n, whole);
    }
};

struct finish_op {
    struct kern_mat y;
    struct kern_cmat sums, bias;
    template <types K> __device__ void at(int64_t row, int64_t col, int n, bool whole) const
    {
        f8 x = load8<K>(sums, row, col, n, whole);
        const f8 b = load8<K>(bias, 0, col, n, whole);
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            x.v[i] += b.v[i];
        store8<K>(y, row, col, n, whole, x);
    }
};

/* n pixels from `first` on. A bf16 result waits for the bias in fp32, so that it is rounded once. */
void multiply(struct kern_stream *stream, const struct kern_conv *c, const struct layout &l, int64_t first, int64_t n)
{
    const enum kern_dtype dtype = c->x.dtype;
    const int64_t ncol = TAPS * c->nin;
    char *scratch = static_cast<char *>(c->scratch);
    const struct kern_mat around = { scratch + l.around, ncol, dtype }, y = rows_from(c->y, first);
    const struct kern_cmat bias = { c->bias, c->nout, KERN_F32 };
    struct product p = {};
    for_eights(stream, { around, c->x }, n, ncol, around_op{ around, *c, first });
    p.m = n, p.n = c->nout, p.k = ncol;
    p.a = kern_const(around), p.b = kern_cmat{ scratch, ncol, dtype }, p.trans_b = true;
    p.alpha = 1;
    p.c = dtype == KERN_F32 ? y : kern_mat{ scratch + l.sums, c->nout, KERN_F32 };
    p.bias = dtype == KERN_F32 ? c->bias : nullptr;
    cuda_product(stream, &p);
    if (dtype != KERN_F32)
        for_eights(stream, { y, p.c, one_row(bias) }, n, c->nout, finish_op{ y, kern_const(p.c), bias });
}

bool sound(struct kern_stream *stream, const struct kern_conv *c)
{
    return cuda_check(stream,
                      c->nin > 0 && c->nout > 0 && (c->stride == 1 || c->stride == 2) && c->height % c->stride == 0 &&
                          c->width % c->stride == 0,
                      "conv: a stride of 1, or one of 2 over even sides, is wanted");
}

} // namespace

size_t cuda_conv_scratch(struct kern_stream *, const struct kern_conv *c)
{
    return layout_of(c).nbytes;
}

void cuda_conv(struct kern_stream *stream, const struct kern_conv *c)
{
    if (!sound(stream, c) || c->height <= 0 || c->width <= 0)
        return;
    const struct layout l = layout_of(c);
    const int64_t ncol = TAPS * c->nin, all = pixels_of(c);
    const struct kern_mat weights = { c->scratch, ncol, c->x.dtype };
    const struct kern_cmat given = { c->weight, ncol, c->x.dtype };
    for_eights(stream, { weights, given }, c->nout, ncol, weight_op{ weights, given, (uint32_t)c->nin });
    for (int64_t first = 0; first < all; first += l.npixel)
        multiply(stream, c, l, first, all - first < l.npixel ? all - first : l.npixel);
}
