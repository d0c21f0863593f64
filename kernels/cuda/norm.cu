/* RMSNorm and its gradient. A group of columns (a row, or a head of one) belongs to a warp where it is short, else to a block of threads; it is read from
 * memory once, and again from the cache for its result. */
#include "cuda/fold.cuh"
#include "cuda/ops.h"
#include "cuda/reduce.cuh"

namespace {

enum { SHORT = WARP * WIDTH }; /* columns that a warp takes in one go */

/* Which group this thread works on. False: none. */
template <int GROUP> __device__ __forceinline__ bool my_group(int64_t ngroups, int64_t *group, int *lane)
{
    *group = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / GROUP;
    *lane = (int)(threadIdx.x % GROUP);
    return *group < ngroups;
}

__device__ __forceinline__ int some(int64_t ncol, int64_t col)
{
    return ncol - col < WIDTH ? (int)(ncol - col) : WIDTH;
}

template <types K, int GROUP> __global__ void __launch_bounds__(THREADS) norm_groups(struct kern_rmsnorm r, bool vectors)
{
    int64_t group;
    int lane;
    if (!my_group<GROUP>(r.nrow * r.ngroup, &group, &lane))
        return;
    const int64_t row = group / r.ngroup, col0 = group % r.ngroup * r.ncol;
    float sum = 0;
    for (int64_t col = (int64_t)lane * WIDTH; col < r.ncol; col += GROUP * WIDTH) {
        const f8 x = load8<K>(r.x, row, col0 + col, some(r.ncol, col), vectors && some(r.ncol, col) == WIDTH);
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            sum += x.v[i] * x.v[i];
    }
    const float rstd = (float)(1.0 / sqrt((double)group_sum<GROUP>(sum) / (double)r.ncol + (double)r.eps));
    for (int64_t col = (int64_t)lane * WIDTH; col < r.ncol; col += GROUP * WIDTH) {
        const int n = some(r.ncol, col);
        const bool whole = vectors && n == WIDTH;
        f8 x = load8<K>(r.x, row, col0 + col, n, whole);
        const f8 gamma = load8<K>(r.gamma, 0, col, n, whole);
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            x.v[i] = x.v[i] * rstd * gamma.v[i];
        store8<K>(r.y, row, col0 + col, n, whole, x);
    }
    if (r.rstd && lane == 0)
        r.rstd[group] = rstd;
}

template <types K, int GROUP> __global__ void __launch_bounds__(THREADS) grad_groups(struct kern_rmsnorm_grad r, bool vectors)
{
    int64_t group;
    int lane;
    if (!my_group<GROUP>(r.nrow * r.ngroup, &group, &lane))
        return;
    const int64_t row = group / r.ngroup, col0 = group % r.ngroup * r.ncol;
    const float rstd = r.rstd[group];
    float sum = 0;
    for (int64_t col = (int64_t)lane * WIDTH; col < r.ncol; col += GROUP * WIDTH) {
        const int n = some(r.ncol, col);
        const bool whole = vectors && n == WIDTH;
        const f8 x = load8<K>(r.x, row, col0 + col, n, whole), dy = load8<K>(r.dy, row, col0 + col, n, whole), gamma = load8<K>(r.gamma, 0, col, n, whole);
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            sum += dy.v[i] * gamma.v[i] * x.v[i];
    }
    /* rstd · xh · mean(g·xh) = x · rstd³ · Σ g·x / ncol */
    const float c = (float)((double)group_sum<GROUP>(sum) * (double)rstd * (double)rstd * (double)rstd / (double)r.ncol);
    for (int64_t col = (int64_t)lane * WIDTH; col < r.ncol; col += GROUP * WIDTH) {
        const int n = some(r.ncol, col);
        const bool whole = vectors && n == WIDTH;
        const f8 x = load8<K>(r.x, row, col0 + col, n, whole), gamma = load8<K>(r.gamma, 0, col, n, whole);
        f8 dx = load8<K>(r.dy, row, col0 + col, n, whole), add = {};
        if (r.add.data)
            add = load8<K>(r.add, row, col0 + col, n, whole);
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            dx.v[i] = rstd * (dx.v[i] * gamma.v[i]) - c * x.v[i] + add.v[i];
        store8<K>(r.dx, row, col0 + col, n, whole, dx);
    }
}

/* A row's part of dgamma: over all its groups. */
struct gamma_op {
    struct kern_rmsnorm_grad r;
    template <types K> __device__ f8 value(int64_t row, int64_t col, int n, bool whole) const
    {
        f8 sum = {};
        for (int64_t group = 0; group < r.ngroup; group++) {
            const int64_t at = group * r.ncol + col;
            const f8 x = load8<K>(r.x, row, at, n, whole), dy = load8<K>(r.dy, row, at, n, whole);
            const float rstd = r.rstd[row * r.ngroup + group];
#pragma unroll
            for (int i = 0; i < WIDTH; i++)
                sum.v[i] += dy.v[i] * (x.v[i] * rstd);
        }
        return sum;
    }
};

/* A head starts at a multiple of 16 bytes if rows do and heads are eights. */
bool vectors_fit(std::initializer_list<operand> all, int64_t ngroup, int64_t ncol)
{
    return aligned(all) && (ngroup == 1 || ncol % WIDTH == 0);
}

template <types K> void run_norm(struct kern_stream *stream, const struct kern_rmsnorm *r, bool vectors)
{
    const int64_t groups = r->nrow * r->ngroup;
    if (r->ncol <= SHORT)
        launch(stream, norm_groups<K, WARP>, blocks_for(groups, THREADS / WARP), THREADS, 0, *r, vectors);
    else
        launch(stream, norm_groups<K, THREADS>, blocks_for(groups, 1), THREADS, sizeof(block_parts<float>), *r, vectors);
}

template <types K> void run_grad(struct kern_stream *stream, const struct kern_rmsnorm_grad *r, bool vectors)
{
    const int64_t groups = r->nrow * r->ngroup;
    if (r->ncol <= SHORT)
        launch(stream, grad_groups<K, WARP>, blocks_for(groups, THREADS / WARP), THREADS, 0, *r, vectors);
    else
        launch(stream, grad_groups<K, THREADS>, blocks_for(groups, 1), THREADS, sizeof(block_parts<float>), *r, vectors);
}

} // namespace

void cuda_rmsnorm(struct kern_stream *stream, const struct kern_rmsnorm *r)
{
    const bool vectors = vectors_fit({r->x, one_row(r->gamma), r->y}, r->ngroup, r->ncol);
    switch (types_of({r->x, r->gamma, r->y})) {
    case ALL_F32:
        run_norm<ALL_F32>(stream, r, vectors);
        break;
    case ALL_BF16:
        run_norm<ALL_BF16>(stream, r, vectors);
        break;
    case MIXED:
        run_norm<MIXED>(stream, r, vectors);
        break;
    }
}

/* dgamma first: dx may lie over dy. */
void cuda_rmsnorm_grad(struct kern_stream *stream, const struct kern_rmsnorm_grad *r)
{
    const bool vectors = vectors_fit({r->x, r->dy, one_row(r->gamma), r->add, r->dx}, r->ngroup, r->ncol);
    if (r->dgamma)
        sum_rows_by_blocks(stream, {r->x, r->dy}, vectors, r->nrow, r->ncol, gamma_op{*r}, r->dgamma, r->scratch);
    if (!r->dx.data)
        return;
    switch (types_of({r->x, r->dy, r->gamma, r->add, r->dx})) {
    case ALL_F32:
        run_grad<ALL_F32>(stream, r, vectors);
        break;
    case ALL_BF16:
        run_grad<ALL_BF16>(stream, r, vectors);
        break;
    case MIXED:
        run_grad<MIXED>(stream, r, vectors);
        break;
    }
}
