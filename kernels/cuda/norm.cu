/* SPDX-License-Identifier: Apache-2.0 */
/* RMSNorm and its gradient. A group of columns (a row, or a head of one) is processed by lanes of a warp if it is
 * short, else by a block of threads. A thread keeps its part in registers until the result; parts of long rows are read
 * again, from the cache. */
#include "cuda/fold.cuh"
#include "cuda/ops.h"
#include "cuda/reduce.cuh"

namespace {

/* A thread's group of columns and its index among the threads of the group. Threads without a group (!there) take part
 * in the sums too, because all threads of a block must reach the barriers. */
struct member {
    int64_t row, col0;
    uint32_t group;
    int lane;
    bool there;
};

template <int GROUP> __device__ __forceinline__ member group_of_thread(int64_t nrow, int64_t ngroup, int64_t ncol)
{
    member m;
    m.group = GROUP == THREADS ? blockIdx.x : blockIdx.x * (THREADS / GROUP) + threadIdx.x / GROUP;
    m.lane = (int)(threadIdx.x % GROUP);
    m.there = m.group < nrow * ngroup;
    m.row = m.group / (uint32_t)ngroup;
    m.col0 = (int64_t)(m.group % (uint32_t)ngroup) * ncol;
    return m;
}

/* Returns how many elements (0 … 8) piece i of a member has, and the column of the first within the group. */
template <int GROUP> __device__ __forceinline__ int piece_of(const member &m, int i, int64_t ncol, int64_t *col)
{
    *col = ((int64_t)i * GROUP + m.lane) * WIDTH;
    return !m.there || *col >= ncol ? 0 : ncol - *col < WIDTH ? (int)(ncol - *col) : WIDTH;
}

/* EACH: pieces that a thread keeps in registers; all their loads are in flight before the first is used. 0: there are
 * more pieces, and each is read again. */
template <int GROUP, int EACH> __device__ __forceinline__ int npieces(int64_t ncol)
{
    return EACH ? EACH : (int)((ncol + GROUP * WIDTH - 1) / (GROUP * WIDTH));
}

template <int EACH> constexpr int KEPT = EACH ? EACH : 1; /* arrays may not be empty */

template <types K, int GROUP>
__device__ __forceinline__ raw8<K> load_piece(const struct kern_cmat &from, const member &m, int i, int64_t ncol,
                                              bool vectors)
{
    int64_t col;
    const int n = piece_of<GROUP>(m, i, ncol, &col);
    return n ? load_raw8<K>(from, m.row, m.col0 + col, n, vectors && n == WIDTH) : raw8<K>();
}

template <types K, int GROUP, int EACH>
__global__ void __launch_bounds__(THREADS) norm_groups(struct kern_rmsnorm r, bool vectors)
{
    const member m = group_of_thread<GROUP>(r.nrow, r.ngroup, r.ncol);
    raw8<K> mine[KEPT<EACH>] = {};
    float sum = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++)
        mine[i] = load_piece<K, GROUP>(r.x, m, i, r.ncol, vectors);
#pragma unroll KEPT < EACH>
    for (int i = 0; i < npieces<GROUP, EACH>(r.ncol); i++) {
        const f8 x = unpack(EACH ? mine[EACH ? i : 0] : load_piece<K, GROUP>(r.x, m, i, r.ncol, vectors));
#pragma unroll
        for (int j = 0; j < WIDTH; j++)
            sum += x.v[j] * x.v[j];
    }
    const float rstd = 1.0f / sqrtf(group_sum<GROUP>(sum) / (float)r.ncol + r.eps);
#pragma unroll KEPT < EACH>
    for (int i = 0; i < npieces<GROUP, EACH>(r.ncol); i++) {
        int64_t col;
        const int n = piece_of<GROUP>(m, i, r.ncol, &col);
        if (n == 0)
            continue;
        const bool whole = vectors && n == WIDTH;
        f8 x = EACH ? unpack(mine[EACH ? i : 0]) : load8<K>(r.x, m.row, m.col0 + col, n, whole);
        const f8 gamma = load8<K>(r.gamma, 0, col, n, whole);
#pragma unroll
        for (int j = 0; j < WIDTH; j++)
            x.v[j] = x.v[j] * rstd * gamma.v[j];
        store8<K>(r.y, m.row, m.col0 + col, n, whole, x);
    }
    if (r.rstd && m.there && m.lane == 0)
        r.rstd[m.group] = rstd;
}

template <types K, int GROUP, int EACH>
__global__ void __launch_bounds__(THREADS) grad_groups(struct kern_rmsnorm_grad r, bool vectors)
{
    const member m = group_of_thread<GROUP>(r.nrow, r.ngroup, r.ncol);
    const float rstd = m.there ? r.rstd[m.group] : 0;
    raw8<K> mine[KEPT<EACH>] = {}, grads[KEPT<EACH>] = {};
    float sum = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        mine[i] = load_piece<K, GROUP>(r.x, m, i, r.ncol, vectors);
        grads[i] = load_piece<K, GROUP>(r.dy, m, i, r.ncol, vectors);
    }
#pragma unroll KEPT < EACH>
    for (int i = 0; i < npieces<GROUP, EACH>(r.ncol); i++) {
        int64_t col;
        const int n = piece_of<GROUP>(m, i, r.ncol, &col);
        const f8 x = unpack(EACH ? mine[EACH ? i : 0] : load_piece<K, GROUP>(r.x, m, i, r.ncol, vectors));
        const f8 dy = unpack(EACH ? grads[EACH ? i : 0] : load_piece<K, GROUP>(r.dy, m, i, r.ncol, vectors));
        const f8 gamma = n ? load8<K>(r.gamma, 0, col, n, vectors && n == WIDTH) : f8();
#pragma unroll
        for (int j = 0; j < WIDTH; j++)
            sum += dy.v[j] * gamma.v[j] * x.v[j];
    }
    const float c = group_sum<GROUP>(sum) / (float)r.ncol * rstd * rstd *
                    rstd; /* rstd · xh · mean(g·xh) = x · rstd³ · Σ g·x / ncol */
#pragma unroll KEPT < EACH>
    for (int i = 0; i < npieces<GROUP, EACH>(r.ncol); i++) {
        int64_t col;
        const int n = piece_of<GROUP>(m, i, r.ncol, &col);
        if (n == 0)
            continue;
        const bool whole = vectors && n == WIDTH;
        const f8 x = EACH ? unpack(mine[EACH ? i : 0]) : load8<K>(r.x, m.row, m.col0 + col, n, whole),
                 gamma = load8<K>(r.gamma, 0, col, n, whole);
        f8 dx = EACH ? unpack(grads[EACH ? i : 0]) : load8<K>(r.dy, m.row, m.col0 + col, n, whole), add = {};
        if (r.add.data)
            add = load8<K>(r.add, m.row, m.col0 + col, n, whole);
#pragma unroll
        for (int j = 0; j < WIDTH; j++)
            dx.v[j] = rstd * (dx.v[j] * gamma.v[j]) - c * x.v[j] + add.v[j];
        store8<K>(r.dx, m.row, m.col0 + col, n, whole, dx);
    }
}

/* Contribution of a row to dgamma, over all its groups. */
struct gamma_op {
    struct kern_rmsnorm_grad r;
    template <types K> __device__ f8 value(int64_t row, int64_t col, int n, bool whole) const
    {
        f8 sum = {};
        for (int64_t group = 0; group < r.ngroup; group++) {
            const int64_t at = group * r.ncol + col;
            const float rstd = r.rstd[row * r.ngroup + group];
            const raw8<K> raw = load_raw8<K>(r.x, row, at, n, whole), grad = load_raw8<K>(r.dy, row, at, n, whole);
            const f8 x = unpack(raw), dy = unpack(grad);
#pragma unroll
            for (int i = 0; i < WIDTH; i++)
                sum.v[i] += dy.v[i] * (x.v[i] * rstd);
        }
        return sum;
    }
};

/* A head starts at a multiple of 16 bytes if rows do and head sizes are multiples of eight. */
bool vectors_fit(std::initializer_list<operand> all, int64_t ngroup, int64_t ncol)
{
    return aligned(all) && (ngroup == 1 || ncol % WIDTH == 0);
}

/* Chooses the smallest group of threads that keeps a group of columns in registers, if there is one. */
#define FOR_GROUP(ncol, call) \
    do { \
        if ((ncol) <= 8 * WIDTH) \
            call(8, 1); \
        else if ((ncol) <= 16 * WIDTH) \
            call(16, 1); \
        else if ((ncol) <= WARP * WIDTH) \
            call(WARP, 1); \
        else if ((ncol) <= 2 * THREADS * WIDTH) \
            call(THREADS, 2); \
        else if (K == ALL_BF16 && (ncol) <= 4 * THREADS * WIDTH) \
            call(THREADS, K == ALL_BF16 ? 4 : 0); \
        else \
            call(THREADS, 0); \
    } while (0)

template <types K> void run_norm(struct kern_stream *stream, const struct kern_rmsnorm *r, bool vectors)
{
#define NORM(GROUP, EACH) \
    launch(stream, norm_groups<K, GROUP, EACH>, blocks_for(r->nrow * r->ngroup, THREADS / (GROUP)), THREADS, \
           sizeof(block_parts<float>), *r, vectors)
    FOR_GROUP(r->ncol, NORM);
#undef NORM
}

template <types K> void run_grad(struct kern_stream *stream, const struct kern_rmsnorm_grad *r, bool vectors)
{
#define GRAD(GROUP, EACH) \
    launch(stream, grad_groups<K, GROUP, EACH>, blocks_for(r->nrow * r->ngroup, THREADS / (GROUP)), THREADS, \
           sizeof(block_parts<float>), *r, vectors)
    FOR_GROUP(r->ncol, GRAD);
#undef GRAD
}

} // namespace

void cuda_rmsnorm(struct kern_stream *stream, const struct kern_rmsnorm *r)
{
    const bool vectors = vectors_fit({ r->x, one_row(r->gamma), r->y }, r->ngroup, r->ncol);
    switch (types_of({ r->x, r->gamma, r->y })) {
    case ALL_F32: run_norm<ALL_F32>(stream, r, vectors); break;
    case ALL_BF16: run_norm<ALL_BF16>(stream, r, vectors); break;
    case MIXED: run_norm<MIXED>(stream, r, vectors); break;
    }
}

/* Computes dgamma first, because dx may overwrite dy. */
void cuda_rmsnorm_grad(struct kern_stream *stream, const struct kern_rmsnorm_grad *r)
{
    const bool vectors = vectors_fit({ r->x, r->dy, one_row(r->gamma), r->add, r->dx }, r->ngroup, r->ncol);
    if (r->dgamma)
        sum_rows_by_blocks(stream, { r->x, r->dy }, vectors, r->nrow, r->ncol, gamma_op{ *r }, r->dgamma, r->scratch);
    if (!r->dx.data)
        return;
    switch (types_of({ r->x, r->dy, r->gamma, r->add, r->dx })) {
    case ALL_F32: run_grad<ALL_F32>(stream, r, vectors); break;
    case ALL_BF16: run_grad<ALL_BF16>(stream, r, vectors); break;
    case MIXED: run_grad<MIXED>(stream, r, vectors); break;
    }
}
