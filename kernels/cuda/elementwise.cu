/* SPDX-License-Identifier: Apache-2.0 */
/* Casts, sums of matrices, SwiGLU. Each result is computed before it is stored, because it may overwrite an operand. */
#include "cuda/ops.h"
#include "cuda/sigmoid.cuh"

namespace {

struct cast_op {
    struct kern_mat y;
    struct kern_cmat a;
    template <types K> __device__ void at(int64_t row, int64_t col, int n, bool whole) const
    {
        store8<K>(y, row, col, n, whole, load8<K>(a, row, col, n, whole));
    }
};

struct add_op {
    struct kern_mat y;
    struct kern_cmat a, b;
    template <types K> __device__ void at(int64_t row, int64_t col, int n, bool whole) const
    {
        f8 x = load8<K>(a, row, col, n, whole);
        const f8 z = load8<K>(b, row, col, n, whole);
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            x.v[i] += z.v[i];
        store8<K>(y, row, col, n, whole, x);
    }
};

struct scale_op {
    struct kern_mat y;
    struct kern_cmat a;
    float factor;
    template <types K> __device__ void at(int64_t row, int64_t col, int n, bool whole) const
    {
        f8 x = load8<K>(a, row, col, n, whole);
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            x.v[i] *= factor;
        store8<K>(y, row, col, n, whole, x);
    }
};

struct swiglu_op {
    struct kern_mat y;
    struct kern_cmat gate, up;
    template <types K> __device__ void at(int64_t row, int64_t col, int n, bool whole) const
    {
        f8 g = load8<K>(gate, row, col, n, whole);
        const f8 u = load8<K>(up, row, col, n, whole);
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            g.v[i] = g.v[i] * sigmoid<K>(g.v[i]) * u.v[i];
        store8<K>(y, row, col, n, whole, g);
    }
};

struct swiglu_grad_op {
    struct kern_swiglu_grad r;
    template <types K> __device__ void at(int64_t row, int64_t col, int n, bool whole) const
    {
        const f8 g = load8<K>(r.gate, row, col, n, whole), u = load8<K>(r.up, row, col, n, whole),
                 d = load8<K>(r.dy, row, col, n, whole);
        f8 dgate, dup, y;
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            const float s = sigmoid<K>(g.v[i]), silu = g.v[i] * s;
            dup.v[i] = d.v[i] * silu;
            dgate.v[i] = d.v[i] * u.v[i] * (s + silu * (1.0f - s));
            y.v[i] = silu * u.v[i];
        }
        if (r.y.data)
            store8<K>(r.y, row, col, n, whole, y);
        store8<K>(r.dgate, row, col, n, whole, dgate);
        store8<K>(r.dup, row, col, n, whole, dup);
    }
};

} // namespace

void cuda_cast(struct kern_stream *stream, struct kern_mat dst, struct kern_cmat src, int64_t nrow, int64_t ncol)
{
    for_elements(stream, { dst, src }, nrow, ncol, cast_op{ dst, src });
}

void cuda_add(struct kern_stream *stream, struct kern_mat dst, struct kern_cmat a, struct kern_cmat b, int64_t nrow,
              int64_t ncol)
{
    for_elements(stream, { dst, a, b }, nrow, ncol, add_op{ dst, a, b });
}

void cuda_scale(struct kern_stream *stream, struct kern_mat dst, struct kern_cmat src, float factor, int64_t nrow,
                int64_t ncol)
{
    for_elements(stream, { dst, src }, nrow, ncol, scale_op{ dst, src, factor });
}

void cuda_swiglu(struct kern_stream *stream, struct kern_mat y, struct kern_cmat gate, struct kern_cmat up,
                 int64_t nrow, int64_t ncol)
{
    for_elements(stream, { y, gate, up }, nrow, ncol, swiglu_op{ y, gate, up });
}

void cuda_swiglu_grad(struct kern_stream *stream, const struct kern_swiglu_grad *r)
{
    for_elements(stream, { r->gate, r->up, r->dy, r->dgate, r->dup, r->y }, r->nrow, r->ncol, swiglu_grad_op{ *r });
}
