/* SPDX-License-Identifier: Apache-2.0 */
/* RMSNorm and its gradient. */
#include "cuda/fold.cuh"
#include "cuda/ops.h"
#include "cuda/pieces.cuh"

namespace {

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
