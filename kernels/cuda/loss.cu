/* SPDX-License-Identifier: Apache-2.0 */
/* Cross-entropy: one block of threads per row of logits. The block reads the row once for its maximum and sum, and
 * again for its gradient. The second read hits the cache, because blocks are as large as possible and few rows are in
 * flight. */
#include "cuda/ops.h"
#include "cuda/reduce.cuh"
#include "cuda/rows.cuh"
#include "cuda/vec.cuh"

namespace {

/* Σ exp(x - top) so far, and the largest x. A NaN never becomes the maximum, but makes the sum NaN. */
struct softmax_state {
    float top, sum;
};

enum { ROW_THREADS = 1024 }; /* one block per multiprocessor; two would leave 32 registers per thread */
template <types K> constexpr int AHEAD = K == ALL_BF16 ? 4 : 2; /* groups of eight per thread in flight */

struct block_results {
    softmax_state part[ROW_THREADS / WARP];
    float at; /* logit of the target */
};

/* Rescales the sum of s to the maximum `top`. The test for equality avoids exp(-inf - -inf) = NaN if both are empty. */
__device__ __forceinline__ float rescaled_sum(softmax_state s, float top)
{
    return s.top == top ? s.sum : s.sum * expf(s.top - top);
}

__device__ __forceinline__ softmax_state join(softmax_state a, softmax_state b)
{
    const float top = fmaxf(a.top, b.top);
    return softmax_state{ top, rescaled_sum(a, top) + rescaled_sum(b, top) };
}

__device__ __forceinline__ softmax_state join_block(block_results &shared, softmax_state s)
{
#pragma unroll
    for (int with = WARP / 2; with > 0; with /= 2)
        s = join(s, softmax_state{ __shfl_xor_sync(~0u, s.top, with), __shfl_xor_sync(~0u, s.sum, with) });
    if (threadIdx.x % WARP == 0)
        shared.part[threadIdx.x / WARP] = s;
    __syncthreads();
    s = shared.part[0];
    for (int i = 1; i < ROW_THREADS / WARP; i++)
        s = join(s, shared.part[i]);
    return s;
}

/* Returns how many elements (0 … 8) this thread's group i has in the stretch of the row that starts at `from`, and the
 * column of the first. */
__device__ __forceinline__ int eight_of(int64_t from, int i, int64_t ncol, int64_t *col)
{
    *col = from + ((int64_t)i * ROW_THREADS + threadIdx.x) * WIDTH;
    return *col >= ncol ? 0 : ncol - *col < WIDTH ? (int)(ncol - *col) : WIDTH;
}

/* Loads a thread's groups of eight of a stretch. */
template <types K>
__device__ __forceinline__ void load_eights(raw8<K> x[AHEAD<K>], const struct kern_cross_entropy &e, int64_t row,
                                            int64_t from, bool vectors)
{
    int64_t col;
#pragma unroll
    for (int i = 0; i < AHEAD<K>; i++) {
        const int n = eight_of(from, i, e.ncol, &col);
        x[i] = n ? load_raw8<K>(e.logits, row, col, n, vectors && n == WIDTH) : raw8<K>();
    }
}

/* Replaces elements n … 7 by -inf: they are never the maximum and add nothing. */
__device__ __forceinline__ f8 mask_tail(f8 x, int n)
{
    if (n < WIDTH)
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            x.v[i] = i < n ? x.v[i] : -INFINITY;
    return x;
}

/* Adds a stretch to the sum, which is rescaled to a new maximum once. An infinite maximum is not subtracted, as that
 * would make NaNs. */
template <types K>
__device__ __forceinline__ softmax_state add_eights(softmax_state s, const raw8<K> x[AHEAD<K>], int64_t from,
                                                    int64_t ncol)
{
    int64_t col;
    float top = s.top;
#pragma unroll
    for (int i = 0; i < AHEAD<K>; i++) {
        const f8 v = mask_tail(unpack(x[i]), eight_of(from, i, ncol, &col));
#pragma unroll
        for (int j = 0; j < WIDTH; j++)
            top = fmaxf(top, v.v[j]);
    }
    const float off = top - top == 0 ? top : 0.0f;
    s = softmax_state{ top, rescaled_sum(s, top) };
#pragma unroll
    for (int i = 0; i < AHEAD<K>; i++) {
        const f8 v = mask_tail(unpack(x[i]), eight_of(from, i, ncol, &col));
#pragma unroll
        for (int j = 0; j < WIDTH; j++)
            s.sum += expf(v.v[j] - off);
    }
    return s;
}

template <types K>
__device__ __forceinline__ softmax_state read_row(const struct kern_cross_entropy &e, int64_t row, bool vectors)
{
    softmax_state s = { -INFINITY, 0 };
    for (int64_t from = 0; from < e.ncol; from += AHEAD<K> * ROW_THREADS * WIDTH) {
        raw8<K> x[AHEAD<K>];
        load_eights<K>(x, e, row, from, vectors);
        s = add_eights<K>(s, x, from, e.ncol);
    }
    return s;
}

/* Writes the gradient from the start of the row, a stretch of all threads at a time. All threads read their part of a
 * stretch before one writes, because the gradient may share memory with the logits, at half their width. */
template <types K>
__device__ __forceinline__ void write_row(const struct kern_cross_entropy &e, int64_t row, bool vectors,
                                          softmax_state s)
{
    const float grad_scale = e.weights ? e.grad_scale * e.weights[row] : e.grad_scale,
                scale = (float)((double)grad_scale / (double)s.sum);
    const int64_t target = e.target[row];
    for (int64_t from = 0; from < e.ncol; from += AHEAD<K> * ROW_THREADS * WIDTH) {
        raw8<K> raw[AHEAD<K>];
        load_eights<K>(raw, e, row, from, vectors);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < AHEAD<K>; i++) {
            int64_t col;
            const int n = eight_of(from, i, e.ncol, &col), at = target - col < WIDTH ? (int)(target - col) : WIDTH;
            f8 x = unpack(raw[i]);
#pragma unroll
            for (int j = 0; j < WIDTH; j++)
                x.v[j] = expf(x.v[j] - s.top) * scale - (j == at ? grad_scale : 0.0f);
            if (n)
                store8<K>(e.dlogits, row, col, n, vectors && n == WIDTH, x);
        }
    }
}

__device__ __forceinline__ void skip_row(const struct kern_cross_entropy &e, int64_t row, bool vectors)
{
    if (threadIdx.x == 0)
        e.loss[row] = 0;
    if (!e.dlogits.data)
        return;
    for (int64_t col = (int64_t)threadIdx.x * WIDTH; col < e.ncol; col += ROW_THREADS * WIDTH) {
        const int n = e.ncol - col < WIDTH ? (int)(e.ncol - col) : WIDTH;
        store8<MIXED>(e.dlogits, row, col, n, vectors && n == WIDTH, f8{});
    }
}

template <types K>
__global__ void __launch_bounds__(ROW_THREADS)
    entropy_rows(struct kern_cross_entropy e, const struct cuda_fault *fault, bool vectors)
{
    block_results &shared = shared_memory<block_results>();
    const int64_t row = blockIdx.x;
    if (fault->kind != CUDA_FAULT_NONE)
        return;
    if (e.target[row] < 0) {
        skip_row(e, row, vectors);
        return;
    }
    if (threadIdx.x == 0)
        shared.at = load1<K>(e.logits, row, e.target[row]);
    const softmax_state s = join_block(shared, read_row<K>(e, row, vectors));
    if (threadIdx.x == 0)
        e.loss[row] = (float)(log((double)s.sum) + ((double)s.top - (double)shared.at));
    if (e.dlogits.data)
        write_row<K>(e, row, vectors, s);
}

} // namespace

void cuda_cross_entropy(struct kern_stream *stream, const struct kern_cross_entropy *e)
{
    const bool vectors = aligned({ e->logits, e->dlogits });
    const dim3 grid((unsigned)e->nrow);
    cuda_check_indices(stream, e->target, e->nrow, INT32_MIN, e->ncol, CUDA_FAULT_TARGET);
    switch (types_of({ e->logits, e->dlogits })) {
    case ALL_F32:
        launch(stream, entropy_rows<ALL_F32>, grid, ROW_THREADS, sizeof(block_results), *e, stream->fault, vectors);
        break;
    case ALL_BF16:
        launch(stream, entropy_rows<ALL_BF16>, grid, ROW_THREADS, sizeof(block_results), *e, stream->fault, vectors);
        break;
    case MIXED:
        launch(stream, entropy_rows<MIXED>, grid, ROW_THREADS, sizeof(block_results), *e, stream->fault, vectors);
        break;
    }
}
