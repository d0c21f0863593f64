/* SPDX-License-Identifier: Apache-2.0 */
/* The weighted bias after an expert's last product. */
#include "cuda/experts.cuh"
#include "cuda/experts.h"
#include "cuda/fold.cuh"
#include "cuda/reduce.cuh"
#include "cuda/vec.cuh"

namespace {

enum { ROW_THREADS = 128 };

struct bias_op {
    struct kern_expert_bias b;
    template <types K> __device__ void at(int64_t row, int64_t col, int n, bool whole) const
    {
        const int64_t choice = choice_of(b.choices, row);
        if (choice < 0)
            return;
        const float weight = b.weights[choice];
        f8 y = load8<K>(as_const(b.y), row, col, n, whole);
        const f8 x = load8<K>(b.bias, 0, col, n, whole);
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            y.v[i] += weight * x.v[i];
        store8<K>(b.y, row, col, n, whole, y);
    }
};

/* weight·dy of a row; of padding nothing. */
struct weighted_op {
    struct kern_expert_bias_grad g;
    template <types K> __device__ f8 value(int64_t row, int64_t col, int n, bool whole) const
    {
        const int64_t choice = choice_of(g.choices, row);
        f8 x = {};
        if (choice < 0)
            return x;
        const float weight = g.weights[choice];
        x = load8<K>(g.dy, row, col, n, whole);
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            x.v[i] *= weight;
        return x;
    }
};

/* One block of threads per row. */
template <types K>
__global__ void __launch_bounds__(ROW_THREADS) weight_grads(struct kern_expert_bias_grad g, bool vectors)
{
    const int64_t row = blockIdx.x, choice = choice_of(g.choices, row);
    float sum = 0;
    if (choice < 0)
        return;
    for (int64_t col = (int64_t)threadIdx.x * WIDTH; col < g.ncol; col += ROW_THREADS * WIDTH) {
        const int n = g.ncol - col < WIDTH ? (int)(g.ncol - col) : WIDTH;
        const bool whole = vectors && n == WIDTH;
        const f8 dy = load8<K>(g.dy, row, col, n, whole), bias = load8<K>(g.bias, 0, col, n, whole);
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            sum += i < n ? dy.v[i] * bias.v[i] : 0.0f;
    }
    sum = block_sum<ROW_THREADS>(shared_memory<block_parts<float>>(), sum);
    if (threadIdx.x == 0)
        g.dweights[choice] += sum;
}

} // namespace

void cuda_expert_bias(struct kern_stream *stream, const struct kern_expert_bias *b)
{
    for_eights(stream, { one_row(b->bias), b->y }, b->nrow, b->ncol, bias_op{ *b });
}

void cuda_expert_bias_grad(struct kern_stream *stream, const struct kern_expert_bias_grad *g)
{
    const std::initializer_list<operand> all = { one_row(g->bias), g->dy };
    const bool vectors = aligned(all);
    const dim3 grid((unsigned)g->nrow);
    const size_t shared = sizeof(block_parts<float>);
    switch (types_of(all)) {
    case ALL_F32: launch(stream, weight_grads<ALL_F32>, grid, ROW_THREADS, shared, *g, vectors); break;
    case ALL_BF16: launch(stream, weight_grads<ALL_BF16>, grid, ROW_THREADS, shared, *g, vectors); break;
    case MIXED: launch(stream, weight_grads<MIXED>, grid, ROW_THREADS, shared, *g, vectors); break;
    }
    if (g->dbias)
        sum_rows_by_blocks(stream, { g->dy }, aligned({ g->dy }), g->nrow, g->ncol, weighted_op{ *g }, g->dbias,
                           g->scratch);
}
