/* AdamW's step. */
#include "cuda/ops.h"
#include "cuda/vec.cuh"

namespace {

/* Constants of one step, already rounded to fp32: computed on the host in fp64. */
struct adamw_op {
    struct kern_mat p, m, v;
    struct kern_cmat g;
    float grad_scale, keep, one_minus_beta1, beta2, one_minus_beta2, step_size, inv_sqrt_bias2, eps;
    template <types K> __device__ void at(int64_t row, int64_t col, int n, bool whole) const
    {
        f8 weight = load8<K>(reading(p), row, col, n, whole), mean = load8<K>(reading(m), row, col, n, whole);
        f8 square = load8<K>(reading(v), row, col, n, whole);
        const f8 grad = load8<K>(g, row, col, n, whole);
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            const float x = grad.v[i] * grad_scale;
            mean.v[i] += (x - mean.v[i]) * one_minus_beta1;
            square.v[i] = square.v[i] * beta2 + x * x * one_minus_beta2;
            weight.v[i] = weight.v[i] * keep - step_size * mean.v[i] / (sqrtf(square.v[i]) * inv_sqrt_bias2 + eps);
        }
        store8<K>(p, row, col, n, whole, weight);
        store8<K>(m, row, col, n, whole, mean);
        store8<K>(v, row, col, n, whole, square);
    }
};

struct kern_mat flat(float *x, int64_t nelem)
{
    return kern_mat{x, nelem, KERN_F32};
}

} // namespace

void cuda_adamw(struct kern_stream *stream, const struct kern_adamw *a)
{
    if (!cuda_check(stream, a->t >= 1, "adamw: steps count from 1"))
        return;
    const double bias1 = 1 - pow(a->beta1, (double)a->t), bias2 = 1 - pow(a->beta2, (double)a->t);
    const adamw_op op = {flat(a->p, a->nelem), flat(a->m, a->nelem), flat(a->v, a->nelem), kern_cmat{a->grad, a->nelem, KERN_F32}, (float)a->grad_scale,
                         (float)(1 - a->lr * a->weight_decay), (float)(1 - a->beta1), (float)a->beta2, (float)(1 - a->beta2), (float)(a->lr / bias1),
                         (float)(1 / sqrt(bias2)), (float)a->eps};
    for_eights(stream, {a->p, a->m, a->v, a->grad}, 1, a->nelem, op);
}
