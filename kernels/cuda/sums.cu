/* SPDX-License-Identifier: Apache-2.0 */
/* Sums over tokens and over all elements, in fixed orders. */
#include "cuda/fold.cuh"
#include "cuda/lists.cuh"
#include "cuda/ops.h"
#include "cuda/reduce.cuh"

namespace {

__global__ void __launch_bounds__(THREADS) fold_parts(float *dst, const float *parts, int64_t npart, int64_t ncol)
{
    const int64_t col = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (col >= ncol)
        return;
    float sum = dst[col];
    for (int64_t i = 0; i < npart; i++)
        sum += parts[i * ncol + col];
    dst[col] = sum;
}

struct rows_op {
    struct kern_cmat x;
    template <types K> __device__ f8 value(int64_t row, int64_t col, int n, bool whole) const
    {
        return load8<K>(x, row, col, n, whole);
    }
};

struct block_sums {
    double part[THREADS];
};

/* One block of threads for everything: it sums a few thousand losses. Each thread sums KERN_ROW_BLOCK elements; the
 * first thread then adds the partial sums in order. */
__global__ void __launch_bounds__(THREADS) sum_all(double *dst, const float *x, int64_t nelem)
{
    block_sums &shared = shared_memory<block_sums>();
    double sum = 0;
    for (int64_t from = 0; from < nelem; from += (int64_t)THREADS * KERN_ROW_BLOCK) {
        const int64_t mine = from + (int64_t)threadIdx.x * KERN_ROW_BLOCK;
        double part = 0;
        for (int64_t i = mine; i < nelem && i < mine + KERN_ROW_BLOCK; i++)
            part += (double)x[i];
        shared.part[threadIdx.x] = part;
        __syncthreads();
        for (int i = 0; threadIdx.x == 0 && i < THREADS; i++)
            sum += shared.part[i];
        __syncthreads();
    }
    if (threadIdx.x == 0)
        *dst = sum;
}

struct rows_entry {
    struct kern_cmat x;
    int64_t ncol, block0;
    double *out; /* for the first row of x */
    bool aligned;
};

/* One block of threads per row. A thread sums its groups of eight in order; block_sum then adds the threads in a fixed
 * order. */
template <types K> __device__ __forceinline__ double square_row(const rows_entry &e, int64_t row)
{
    double sum = 0;
    for (int64_t col = (int64_t)threadIdx.x * WIDTH; col < e.ncol; col += THREADS * WIDTH) {
        const int n = e.ncol - col < WIDTH ? (int)(e.ncol - col) : WIDTH;
        const f8 v = load8<K>(e.x, row, col, n, e.aligned && n == WIDTH);
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            sum += (double)v.v[i] * (double)v.v[i];
    }
    return sum;
}

__global__ void __launch_bounds__(THREADS) square_rows(const rows_entry *entries, int n)
{
    const rows_entry &e = entry_of_block(entries, n);
    const int64_t row = (int64_t)blockIdx.x - e.block0;
    double sum = e.x.dtype == KERN_F32 ? square_row<ALL_F32>(e, row) : square_row<ALL_BF16>(e, row);
    sum = block_sum<THREADS>(shared_memory<block_parts<double>>(), sum);
    if (threadIdx.x == 0)
        e.out[row] = sum;
}

} // namespace

void cuda_fold(struct kern_stream *stream, float *dst, const float *parts, int64_t npart, int64_t ncol)
{
    launch(stream, fold_parts, blocks_for(ncol, THREADS), THREADS, 0, dst, parts, npart, ncol);
}

void cuda_sum_rows(struct kern_stream *stream, float *dst, struct kern_cmat x, int64_t nrow, int64_t ncol,
                   float *scratch)
{
    sum_rows_by_blocks(stream, { x }, aligned({ x }), nrow, ncol, rows_op{ x }, dst, scratch);
}

void cuda_sum(struct kern_stream *stream, double *dst, const float *x, int64_t nelem)
{
    launch(stream, sum_all, dim3(1), THREADS, sizeof(block_sums), dst, x, nelem);
}

void cuda_sum_squares(struct kern_stream *stream, double *out, const struct kern_rows *matrices, size_t nmatrices)
{
    list<rows_entry> l = { stream, 0, 0, {} };
    for (size_t i = 0; i < nmatrices; i++) {
        const struct kern_rows *m = &matrices[i];
        list_add(l, rows_entry{ m->x, m->ncol, 0, out, aligned({ m->x }) }, m->nrow);
        out += m->nrow;
        if (l.n > 0 && (i + 1 == nmatrices || list_is_full(l))) {
            list_send(l);
            launch(stream, square_rows, dim3((unsigned)l.nblock), THREADS, sizeof(block_parts<double>),
                   list_on_device(l), l.n);
            l.n = 0, l.nblock = 0;
        }
    }
}
