/* SPDX-License-Identifier: Apache-2.0 */
/* The gated activation of experts. */
#include "cuda/experts.cuh"
#include "cuda/experts.h"
#include "cuda/reduce.cuh"
#include "cuda/vec.cuh"

namespace {

enum { ROW_THREADS = 128 };

/* Eight elements of gate and of up: of two matrices, or in turn in one of twice the width. */
struct pair {
    f8 gate, up;
};

template <types K>
__device__ __forceinline__ pair load_pair(struct kern_cmat gate, struct kern_cmat up, int64_t row, int64_t col, int n,
                                          bool whole)
{
    if (up.data)
        return { load8<K>(gate, row, col, n, whole), load8<K>(up, row, col, n, whole) };
    const f8 x = load8<K>(gate, row, 2 * col, 2 * n, whole),
             y = load8<K>(gate, row, 2 * col + WIDTH, 2 * n - WIDTH, whole);
    pair p;
#pragma unroll
    for (int i = 0; i < WIDTH / 2; i++) {
        p.gate.v[i] = x.v[2 * i], p.up.v[i] = x.v[2 * i + 1];
        p.gate.v[WIDTH / 2 + i] = y.v[2 * i], p.up.v[WIDTH / 2 + i] = y.v[2 * i + 1];
    }
    return p;
}

template <types K>
__device__ __forceinline__ void store_pair(struct kern_mat gate, struct kern_mat up, int64_t row, int64_t col, int n,
                                           bool whole, const pair &p)
{
    if (up.data) {
        store8<K>(gate, row, col, n, whole, p.gate);
        store8<K>(up, row, col, n, whole, p.up);
        return;
    }
    f8 x, y;
#pragma unroll
    for (int i = 0; i < WIDTH / 2; i++) {
        x.v[2 * i] = p.gate.v[i], x.v[2 * i + 1] = p.up.v[i];
        y.v[2 * i] = p.gate.v[WIDTH / 2 + i], y.v[2 * i + 1] = p.up.v[WIDTH / 2 + i];
    }
    store8<K>(gate, row, 2 * col, 2 * n, whole, x);
    store8<K>(gate, row, 2 * col + WIDTH, 2 * n - WIDTH, whole, y);
}

/* The activation is silu(gate)·up of these; dgate and dup are the factors that lead to the gradients of the operands.
 */
struct gated {
    float gate, up, dgate, dup;
};

__device__ __forceinline__ gated gated_of(float gate, float up, float slope, float limit)
{
    if (slope <= 0)
        return { gate, up, 1.0f, 1.0f };
    /* Written so that NaN stays. */
    const float g = gate > limit ? limit : gate, below = up > limit ? limit : up, u = below < -limit ? -limit : below;
    return { slope * g, (u + 1.0f) / slope, gate <= limit ? slope : 0.0f,
             up >= -limit && up <= limit ? 1.0f / slope : 0.0f };
}

struct act_op {
    struct kern_expert_act a;
    template <types K> __device__ void at(int64_t row, int64_t col, int n, bool whole) const
    {
        const int64_t choice = choice_of(a.choices, row);
        f8 y = {};
        if (choice >= 0) {
            const float weight = a.weights ? a.weights[choice] : 1.0f;
            const pair p = load_pair<K>(a.gate, a.up, row, col, n, whole);
#pragma unroll
            for (int i = 0; i < WIDTH; i++) {
                const gated x = gated_of(p.gate.v[i], p.up.v[i], a.slope, a.limit);
                y.v[i] = weight * (x.gate * sigmoid(x.gate) * x.up);
            }
        }
        store8<K>(a.y, row, col, n, whole, y);
    }
};

/* Eight elements of a row; returns their part of the weight's gradient. Results may overwrite operands. */
template <types K>
__device__ __forceinline__ float act_grad_eight(const struct kern_expert_act_grad &a, int64_t row, int64_t col, int n,
                                                bool whole, float weight)
{
    const pair p = load_pair<K>(a.gate, a.up, row, col, n, whole);
    const f8 d = load8<K>(a.dy, row, col, n, whole);
    pair dp;
    f8 y;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        const gated x = gated_of(p.gate.v[i], p.up.v[i], a.slope, a.limit);
        const float s = sigmoid(x.gate), silu = x.gate * s, dy = weight * d.v[i];
        sum += i < n ? d.v[i] * silu * x.up : 0.0f;
        dp.up.v[i] = dy * silu * x.dup;
        dp.gate.v[i] = dy * x.up * (s + silu * (1.0f - s)) * x.dgate;
        y.v[i] = weight * silu * x.up;
    }
    store_pair<K>(a.dgate, a.dup, row, col, n, whole, dp);
    if (a.y.data)
        store8<K>(a.y, row, col, n, whole, y);
    return sum;
}

template <types K>
__device__ __forceinline__ void clear_row(const struct kern_expert_act_grad &a, int64_t row, bool vectors)
{
    for (int64_t col = (int64_t)threadIdx.x * WIDTH; col < a.ncol; col += ROW_THREADS * WIDTH) {
        const int n = a.ncol - col < WIDTH ? (int)(a.ncol - col) : WIDTH;
        const bool whole = vectors && n == WIDTH;
        store_pair<K>(a.dgate, a.dup, row, col, n, whole, pair{});
        if (a.y.data)
            store8<K>(a.y, row, col, n, whole, f8{});
    }
}

/* One block of threads per row. */
template <types K> __global__ void __launch_bounds__(ROW_THREADS) act_grads(struct kern_expert_act_grad a, bool vectors)
{
    const int64_t row = blockIdx.x, choice = choice_of(a.choices, row);
    float sum = 0;
    if (choice < 0) {
        clear_row<K>(a, row, vectors);
        return;
    }
    const float weight = a.weights ? a.weights[choice] : 1.0f;
    for (int64_t col = (int64_t)threadIdx.x * WIDTH; col < a.ncol; col += ROW_THREADS * WIDTH) {
        const int n = a.ncol - col < WIDTH ? (int)(a.ncol - col) : WIDTH;
        sum += act_grad_eight<K>(a, row, col, n, vectors && n == WIDTH, weight);
    }
    sum = block_sum<ROW_THREADS>(shared_memory<block_parts<float>>(), sum);
    if (threadIdx.x == 0 && a.weights)
        a.dweights[choice] = sum;
}

} // namespace

void cuda_expert_act(struct kern_stream *stream, const struct kern_expert_act *a)
{
    for_eights(stream, { a->gate, a->up, a->y }, a->nrow, a->ncol, act_op{ *a });
}

void cuda_expert_act_grad(struct kern_stream *stream, const struct kern_expert_act_grad *a)
{
    const std::initializer_list<operand> all = { a->gate, a->up, a->dy, a->dgate, a->dup, a->y };
    const bool vectors = aligned(all);
    const dim3 grid((unsigned)a->nrow);
    const size_t shared = sizeof(block_parts<float>);
    switch (types_of(all)) {
    case ALL_F32: launch(stream, act_grads<ALL_F32>, grid, ROW_THREADS, shared, *a, vectors); break;
    case ALL_BF16: launch(stream, act_grads<ALL_BF16>, grid, ROW_THREADS, shared, *a, vectors); break;
    case MIXED: launch(stream, act_grads<MIXED>, grid, ROW_THREADS, shared, *a, vectors); break;
    }
}
