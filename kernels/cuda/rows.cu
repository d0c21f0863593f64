/* SPDX-License-Identifier: Apache-2.0 */
/* Gather and scatter of rows and columns by index: embeddings, supervised rows, and their gradients. A separate launch
 * checks the indices first. A bad index sets the stream's fault, and the kernels here then do nothing. */
#include "cuda/ops.h"
#include "cuda/rows.cuh"
#include "cuda/vec.cuh"

namespace {

struct first_bad_rows {
    int64_t row[THREADS];
};

/* Runs as one block of threads, so that it reports the first bad row of all. `lowest` may allow negative values. */
__global__ void __launch_bounds__(THREADS)
    check_indices(struct cuda_fault *fault, const int32_t *index, int64_t nrow, int64_t lowest, int64_t limit, int kind)
{
    first_bad_rows &shared = shared_memory<first_bad_rows>();
    int64_t first = nrow;
    for (int64_t i = threadIdx.x; i < nrow && first == nrow; i += THREADS)
        if (index[i] < lowest || index[i] >= limit)
            first = i;
    shared.row[threadIdx.x] = first;
    __syncthreads();
    if (threadIdx.x != 0 || fault->kind != CUDA_FAULT_NONE)
        return;
    for (int i = 1; i < THREADS; i++)
        first = shared.row[i] < first ? shared.row[i] : first;
    if (first < nrow)
        *fault = cuda_fault{ kind, index[first], first, limit };
}

/* Copies row index[i] of src to row i of dst, or the reverse (scatter). */
struct move_rows {
    struct kern_mat dst;
    struct kern_cmat src;
    const int32_t *index;
    const struct cuda_fault *fault;
    bool scatter;
    template <types K> __device__ void at(int64_t row, int64_t col, int n, bool whole) const
    {
        if (fault->kind != CUDA_FAULT_NONE)
            return;
        const int64_t other = index[row];
        store8<K>(dst, scatter ? other : row, col, n, whole, load8<K>(src, scatter ? row : other, col, n, whole));
    }
};

struct gather_columns {
    struct kern_mat dst;
    struct kern_cmat src;
    const int32_t *index;
    const struct cuda_fault *fault;
    template <types K> __device__ void at(int64_t row, int64_t col, int n, bool whole) const
    {
        if (fault->kind != CUDA_FAULT_NONE)
            return;
        f8 x = {};
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            if (i < n)
                x.v[i] = load1<K>(src, col + i, index[row]);
        store8<K>(dst, row, col, n, whole, x);
    }
};

struct scatter_add {
    float *dst;
    int64_t per_index, per_col; /* dst element (index, column) is at index · per_index + column · per_col */
    struct kern_cmat src;
    const int32_t *index;
    int64_t nrow, ncol;
    const struct cuda_fault *fault;
};

struct votes {
    int earlier[THREADS / 32];
    unsigned same[THREADS / 32];
};

__device__ __forceinline__ bool any_thread(votes &shared, bool mine)
{
    const unsigned all = __ballot_sync(~0u, mine);
    bool any = false;
    if (threadIdx.x % 32 == 0)
        shared.earlier[threadIdx.x / 32] = all != 0;
    __syncthreads();
    for (int i = 0; i < THREADS / 32; i++)
        any = any || shared.earlier[i] != 0;
    __syncthreads();
    return any;
}

enum { AHEAD = 4 }; /* columns per thread in flight: dst may alias src, so a load after a store would wait for it */

template <types K> __device__ __forceinline__ void add_row(const scatter_add &s, int64_t to, int64_t row)
{
    for (int64_t from = threadIdx.x; from < s.ncol; from += AHEAD * THREADS) {
        float *dst = s.dst + to * s.per_index + from * s.per_col, sum[AHEAD], x[AHEAD];
        const int64_t left = s.ncol - from, apart = THREADS * s.per_col;
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            x[i] = i * THREADS < left ? load1<K>(s.src, row, from + i * THREADS) : 0.0f;
            sum[i] = i * THREADS < left ? dst[i * apart] : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (i * THREADS < left)
                dst[i * apart] = sum[i] + x[i];
    }
}

/* Adds those of THREADS rows, starting at row `from`, whose index is `to`, in ascending order. */
template <types K>
__device__ __forceinline__ void add_same(const scatter_add &s, votes &shared, int64_t to, int64_t from)
{
    const int64_t i = from + threadIdx.x;
    const unsigned mine = __ballot_sync(~0u, i < s.nrow && s.index[i] == to);
    if (threadIdx.x % 32 == 0)
        shared.same[threadIdx.x / 32] = mine;
    __syncthreads();
    for (int w = 0; w < THREADS / 32; w++)
        for (unsigned left = shared.same[w]; left; left &= left - 1)
            add_row<K>(s, to, from + w * 32 + __ffs((int)left) - 1);
    __syncthreads();
}

/* One block of threads per row. The first row with an index adds all rows with that index, in order; later ones exit.
 * Each thread owns its columns. */
template <types K> __global__ void __launch_bounds__(THREADS) scatter_add_rows(scatter_add s)
{
    votes &shared = shared_memory<votes>();
    if (s.fault->kind != CUDA_FAULT_NONE)
        return;
    const int64_t row = blockIdx.x, to = s.index[row];
    bool earlier = false;
    for (int64_t i = threadIdx.x; i < row && !earlier; i += THREADS)
        earlier = s.index[i] == to;
    if (any_thread(shared, earlier))
        return;
    for (int64_t from = row; from < s.nrow; from += THREADS)
        add_same<K>(s, shared, to, from);
}

void run_scatter_add(struct kern_stream *stream, const scatter_add &s, int64_t ndst)
{
    cuda_check_indices(stream, s.index, s.nrow, 0, ndst, CUDA_FAULT_INDEX);
    if (s.src.dtype == KERN_F32)
        launch(stream, scatter_add_rows<ALL_F32>, dim3((unsigned)s.nrow), THREADS, sizeof(votes), s);
    else
        launch(stream, scatter_add_rows<ALL_BF16>, dim3((unsigned)s.nrow), THREADS, sizeof(votes), s);
}

} // namespace

void cuda_check_indices(struct kern_stream *stream, const int32_t *index, int64_t nrow, int64_t lowest, int64_t limit,
                        enum cuda_fault_kind kind)
{
    if (nrow > 0)
        launch(stream, check_indices, dim3(1), THREADS, sizeof(first_bad_rows), stream->fault, index, nrow, lowest,
               limit, (int)kind);
}

void cuda_gather_rows(struct kern_stream *stream, struct kern_mat dst, struct kern_cmat src, const int32_t *index,
                      int64_t nrow, int64_t ncol, int64_t nsrc)
{
    cuda_check_indices(stream, index, nrow, 0, nsrc, CUDA_FAULT_INDEX);
    for_eights(stream, { dst, src }, nrow, ncol, move_rows{ dst, src, index, stream->fault, false });
}

void cuda_scatter_rows(struct kern_stream *stream, struct kern_mat dst, struct kern_cmat src, const int32_t *index,
                       int64_t nrow, int64_t ncol, int64_t ndst)
{
    cuda_check_indices(stream, index, nrow, 0, ndst, CUDA_FAULT_INDEX);
    for_eights(stream, { dst, src }, nrow, ncol, move_rows{ dst, src, index, stream->fault, true });
}

void cuda_scatter_add(struct kern_stream *stream, struct kern_mat dst, struct kern_cmat src, const int32_t *index,
                      int64_t nrow, int64_t ncol, int64_t ndst)
{
    const scatter_add s = { static_cast<float *>(dst.data), dst.pitch, 1, src, index, nrow, ncol, stream->fault };
    if (cuda_check(stream, dst.dtype == KERN_F32, "scatter_add: gradients are added in fp32"))
        run_scatter_add(stream, s, ndst);
}

void cuda_gather_cols(struct kern_stream *stream, struct kern_mat dst, struct kern_cmat src, const int32_t *index,
                      int64_t nrow, int64_t ncol, int64_t nsrc)
{
    cuda_check_indices(stream, index, nrow, 0, nsrc, CUDA_FAULT_INDEX);
    for_eights(stream, { dst, src }, nrow, ncol, gather_columns{ dst, src, index, stream->fault });
}

void cuda_scatter_add_cols(struct kern_stream *stream, struct kern_mat dst, struct kern_cmat src, const int32_t *index,
                           int64_t nrow, int64_t ncol, int64_t ndst)
{
    const scatter_add s = { static_cast<float *>(dst.data), 1, dst.pitch, src, index, nrow, ncol, stream->fault };
    if (cuda_check(stream, dst.dtype == KERN_F32, "scatter_add_cols: gradients are added in fp32"))
        run_scatter_add(stream, s, ndst);
}
