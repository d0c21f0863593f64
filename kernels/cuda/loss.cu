/* Cross-entropy: a block of threads a row of logits. The row is read once for its maximum and sum, and once more, from the cache mostly, for its gradient. */
#include "cuda/ops.h"
#include "cuda/reduce.cuh"
#include "cuda/rows.cuh"
#include "cuda/vec.cuh"

namespace {

/* Σ exp(x - top) so far, and the largest x. A NaN is no maximum but makes the sum one. */
struct soft {
    float top, sum;
};

struct entropy_shared {
    soft part[THREADS / WARP];
    float at; /* the target's logit */
};

/* Where one of the two has nothing yet its top is -inf: exp(-inf - -inf) would be NaN. */
__device__ __forceinline__ float bring(soft s, float top)
{
    return s.top == top ? s.sum : s.sum * expf(s.top - top);
}

__device__ __forceinline__ soft join(soft a, soft b)
{
    const float top = fmaxf(a.top, b.top);
    return soft{top, bring(a, top) + bring(b, top)};
}

__device__ __forceinline__ soft of_eight(const f8 &x, int n)
{
    soft s = {-INFINITY, 0};
#pragma unroll
    for (int i = 0; i < WIDTH; i++)
        if (i < n)
            s.top = fmaxf(s.top, x.v[i]);
#pragma unroll
    for (int i = 0; i < WIDTH; i++)
        if (i < n)
            s.sum += x.v[i] == s.top ? 1.0f : expf(x.v[i] - s.top);
    return s;
}

__device__ __forceinline__ soft join_block(entropy_shared &shared, soft s)
{
#pragma unroll
    for (int with = WARP / 2; with > 0; with /= 2)
        s = join(s, soft{__shfl_xor_sync(~0u, s.top, with), __shfl_xor_sync(~0u, s.sum, with)});
    if (threadIdx.x % WARP == 0)
        shared.part[threadIdx.x / WARP] = s;
    __syncthreads();
    s = shared.part[0];
    for (int i = 1; i < THREADS / WARP; i++)
        s = join(s, shared.part[i]);
    return s;
}

template <types K> __device__ __forceinline__ soft read_row(const struct kern_cross_entropy &e, int64_t row, bool vectors)
{
    soft s = {-INFINITY, 0};
    for (int64_t col = (int64_t)threadIdx.x * WIDTH; col < e.ncol; col += THREADS * WIDTH) {
        const int n = e.ncol - col < WIDTH ? (int)(e.ncol - col) : WIDTH;
        s = join(s, of_eight(load8<K>(e.logits, row, col, n, vectors && n == WIDTH), n));
    }
    return s;
}

/* Forward through the row, a stretch of all threads at a time, each read by all before one writes: the gradient may lie over the logits, at half their width. */
template <types K> __device__ __forceinline__ void write_row(const struct kern_cross_entropy &e, int64_t row, bool vectors, soft s, float scale)
{
    const int64_t target = e.target[row];
    for (int64_t from = 0; from < e.ncol; from += THREADS * WIDTH) {
        const int64_t col = from + (int64_t)threadIdx.x * WIDTH;
        const int n = e.ncol - col < WIDTH ? (int)(e.ncol - col) : WIDTH;
        f8 x = {};
        if (n > 0)
            x = load8<K>(e.logits, row, col, n, vectors && n == WIDTH);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            x.v[i] = expf(x.v[i] - s.top) * scale - (col + i == target ? e.grad_scale : 0.0f);
        if (n > 0)
            store8<K>(e.dlogits, row, col, n, vectors && n == WIDTH, x);
    }
}

__device__ __forceinline__ void skip_row(const struct kern_cross_entropy &e, int64_t row, bool vectors)
{
    if (threadIdx.x == 0)
        e.loss[row] = 0;
    if (!e.dlogits.data)
        return;
    for (int64_t col = (int64_t)threadIdx.x * WIDTH; col < e.ncol; col += THREADS * WIDTH) {
        const int n = e.ncol - col < WIDTH ? (int)(e.ncol - col) : WIDTH;
        store8<MIXED>(e.dlogits, row, col, n, vectors && n == WIDTH, f8{});
    }
}

template <types K> __global__ void __launch_bounds__(THREADS) entropy_rows(struct kern_cross_entropy e, const struct cuda_fault *fault, bool vectors)
{
    entropy_shared &shared = shared_memory<entropy_shared>();
    const int64_t row = blockIdx.x;
    if (fault->kind != CUDA_FAULT_NONE)
        return;
    if (e.target[row] < 0) {
        skip_row(e, row, vectors);
        return;
    }
    if (threadIdx.x == 0)
        shared.at = load1<K>(e.logits, row, e.target[row]);
    const soft s = join_block(shared, read_row<K>(e, row, vectors));
    if (threadIdx.x == 0)
        e.loss[row] = (float)(log((double)s.sum) + ((double)s.top - (double)shared.at));
    if (e.dlogits.data)
        write_row<K>(e, row, vectors, s, (float)((double)e.grad_scale / (double)s.sum));
}

} // namespace

void cuda_cross_entropy(struct kern_stream *stream, const struct kern_cross_entropy *e)
{
    const bool vectors = aligned({e->logits, e->dlogits});
    const dim3 grid((unsigned)e->nrow);
    cuda_check_indices(stream, e->target, e->nrow, INT32_MIN, e->ncol, CUDA_FAULT_TARGET);
    switch (types_of({e->logits, e->dlogits})) {
    case ALL_F32:
        launch(stream, entropy_rows<ALL_F32>, grid, THREADS, sizeof(entropy_shared), *e, stream->fault, vectors);
        break;
    case ALL_BF16:
        launch(stream, entropy_rows<ALL_BF16>, grid, THREADS, sizeof(entropy_shared), *e, stream->fault, vectors);
        break;
    case MIXED:
        launch(stream, entropy_rows<MIXED>, grid, THREADS, sizeof(entropy_shared), *e, stream->fault, vectors);
        break;
    }
}
