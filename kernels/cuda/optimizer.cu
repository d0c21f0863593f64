/* SPDX-License-Identifier: Apache-2.0 */
/* The AdamW step: one launch for all ranges. */
#include "cuda/lists.cuh"
#include "cuda/ops.h"
#include "cuda/vec.cuh"

namespace {

/* Kept small, because each step uploads hundreds of them. */
struct adamw_entry {
    float *p, *m, *v;
    const float *grad;
    void *rounded; /* NULL: not wanted */
    int64_t nelem, block0;
    float keep;
    bool aligned;
};

/* Constants of one step, computed on the host in fp64 and rounded to fp32. */
struct adamw_step {
    float grad_scale, one_minus_beta1, beta2, one_minus_beta2, step_size, inv_sqrt_bias2, eps;
};

/* A matrix of one row; its pitch is unused. */
__host__ __device__ __forceinline__ struct kern_cmat row_of(const void *x, enum kern_dtype dtype)
{
    return kern_cmat{ x, 0, dtype };
}

__device__ __forceinline__ struct kern_mat row_into(void *x, enum kern_dtype dtype)
{
    return kern_mat{ x, 0, dtype };
}

__global__ void __launch_bounds__(THREADS) adamw_ranges(const adamw_entry *entries, int n, adamw_step s)
{
    const adamw_entry &e = entry_of_block(entries, n);
    const int64_t col = (((int64_t)blockIdx.x - e.block0) * THREADS + threadIdx.x) * WIDTH;
    if (col >= e.nelem)
        return;
    const int count = e.nelem - col < WIDTH ? (int)(e.nelem - col) : WIDTH;
    const bool whole = e.aligned && count == WIDTH;
    f8 weight = load8<ALL_F32>(row_of(e.p, KERN_F32), 0, col, count, whole),
       mean = load8<ALL_F32>(row_of(e.m, KERN_F32), 0, col, count, whole);
    f8 square = load8<ALL_F32>(row_of(e.v, KERN_F32), 0, col, count, whole);
    const f8 grad = load8<ALL_F32>(row_of(e.grad, KERN_F32), 0, col, count, whole);
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        const float x = grad.v[i] * s.grad_scale;
        mean.v[i] += (x - mean.v[i]) * s.one_minus_beta1;
        square.v[i] = square.v[i] * s.beta2 + x * x * s.one_minus_beta2;
        weight.v[i] = weight.v[i] * e.keep - s.step_size * mean.v[i] / (sqrtf(square.v[i]) * s.inv_sqrt_bias2 + s.eps);
    }
    store8<ALL_F32>(row_into(e.p, KERN_F32), 0, col, count, whole, weight);
    store8<ALL_F32>(row_into(e.m, KERN_F32), 0, col, count, whole, mean);
    store8<ALL_F32>(row_into(e.v, KERN_F32), 0, col, count, whole, square);
    if (e.rounded)
        store8<ALL_BF16>(row_into(e.rounded, KERN_BF16), 0, col, count, whole, weight);
}

adamw_entry entry_of(const struct kern_adamw_range &r, double lr)
{
    const bool all = aligned({ row_of(r.p, KERN_F32), row_of(r.m, KERN_F32), row_of(r.v, KERN_F32),
                               row_of(r.grad, KERN_F32), row_of(r.rounded, KERN_BF16) });
    return adamw_entry{ r.p, r.m, r.v, r.grad, r.rounded, r.nelem, 0, (float)(1 - lr * r.weight_decay), all };
}

} // namespace

void cuda_adamw(struct kern_stream *stream, const struct kern_adamw *a)
{
    if (!cuda_check(stream, a->t >= 1, "adamw: steps count from 1"))
        return;
    const double bias1 = 1 - pow(a->beta1, (double)a->t), bias2 = 1 - pow(a->beta2, (double)a->t);
    const adamw_step step = { (float)a->grad_scale,   (float)(1 - a->beta1),    (float)a->beta2, (float)(1 - a->beta2),
                              (float)(a->lr / bias1), (float)(1 / sqrt(bias2)), (float)a->eps };
    list<adamw_entry> l = { stream, 0, 0, {} };
    for (size_t i = 0; i < a->nranges; i++) {
        list_add(l, entry_of(a->ranges[i], a->lr), (a->ranges[i].nelem + THREADS * WIDTH - 1) / (THREADS * WIDTH));
        if (l.n > 0 && (i + 1 == a->nranges || list_is_full(l))) {
            list_send(l);
            launch(stream, adamw_ranges, dim3((unsigned)l.nblock), THREADS, 0, list_on_device(l), l.n, step);
            l.n = 0, l.nblock = 0;
        }
    }
}
