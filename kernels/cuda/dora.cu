/* SPDX-License-Identifier: Apache-2.0 */
/* DoRA: row norms of W + scale·B·A (one block of threads per row), the scaling by g, and the gradient of m. */
#include "cuda/fold.cuh"
#include "cuda/ops.h"
#include "cuda/reduce.cuh"

namespace {

/* A thread sums its columns in order; block_sum then adds the threads in a fixed order. */
template <types K> __global__ void __launch_bounds__(THREADS) norm_rows(struct kern_dora_norm d)
{
    const int64_t row = blockIdx.x;
    double sum = 0;
    for (int64_t col = threadIdx.x; col < d.ncol; col += THREADS) {
        float x = load1<K>(d.w, row, col);
        for (int64_t k = 0; k < d.r; k++)
            x += d.scale * load1<K>(d.b, row, k) * load1<K>(d.a, k, col);
        sum += (double)x * (double)x;
    }
    sum = block_sum<THREADS>(shared_memory<block_parts<double>>(), sum);
    if (threadIdx.x == 0)
        d.norm[row] = (float)sqrt(sum);
}

struct scale_op {
    struct kern_dora_scale d;
    template <types K> __device__ void at(int64_t row, int64_t col, int n, bool whole) const
    {
        f8 x = load8<K>(d.u, row, col, n, whole), bias = {}, add = {};
        if (d.bias.data)
            bias = load8<K>(d.bias, 0, col, n, whole);
        if (d.add.data)
            add = load8<K>(d.add, row, col, n, whole);
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            if (i < n)
                x.v[i] = (d.m[col + i] / d.norm[col + i] - d.minus) * x.v[i] + bias.v[i] + add.v[i];
        store8<K>(d.y, row, col, n, whole, x);
    }
};

struct grad_op {
    struct kern_dora_grad d;
    template <types K> __device__ f8 value(int64_t row, int64_t col, int n, bool whole) const
    {
        f8 x = load8<K>(d.dy, row, col, n, whole);
        const f8 u = load8<K>(d.u, row, col, n, whole);
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            if (i < n)
                x.v[i] = x.v[i] * u.v[i] / d.norm[col + i];
        return x;
    }
};

} // namespace

void cuda_dora_norm(struct kern_stream *stream, const struct kern_dora_norm *d)
{
    const dim3 grid = blocks_for(d->nrow, 1);
    switch (types_of({ d->w, d->a, d->b })) {
    case ALL_F32: launch(stream, norm_rows<ALL_F32>, grid, THREADS, sizeof(block_parts<double>), *d); break;
    case ALL_BF16: launch(stream, norm_rows<ALL_BF16>, grid, THREADS, sizeof(block_parts<double>), *d); break;
    case MIXED: launch(stream, norm_rows<MIXED>, grid, THREADS, sizeof(block_parts<double>), *d); break;
    }
}

void cuda_dora_scale(struct kern_stream *stream, const struct kern_dora_scale *d)
{
    for_eights(stream, { d->u, one_row(d->bias), d->add, d->y }, d->nrow, d->ncol, scale_op{ *d });
}

void cuda_dora_grad(struct kern_stream *stream, const struct kern_dora_grad *d)
{
    sum_rows_by_blocks(stream, { d->dy, d->u }, aligned({ d->dy, d->u }), d->nrow, d->ncol, grad_op{ *d }, d->dm,
                       d->scratch);
}
