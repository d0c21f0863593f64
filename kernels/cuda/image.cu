/* SPDX-License-Identifier: Apache-2.0 */
/* Modulated LayerNorm and its gradient, gates, SiLU, squared errors, and pictures of twice the size. */
#include "cuda/images.h"
#include "cuda/pieces.cuh"
#include "cuda/sigmoid.cuh"

namespace {

/* A view of ncol numbers of fp32. */
__device__ __forceinline__ struct kern_cmat floats(const float *x, int64_t ncol)
{
    return kern_cmat{ x, ncol, KERN_F32 };
}

struct moments {
    float mean, rstd;
};

/* Of a row. Two passes: a difference of large sums would lose the variance. */
template <types K, int GROUP, int EACH>
__device__ __forceinline__ moments moments_of(const struct kern_cmat &from, const member &m,
                                              const raw8<K> (&mine)[KEPT<EACH>], int64_t ncol, float eps, bool vectors)
{
    float sum = 0, squares = 0;
#pragma unroll KEPT < EACH>
    for (int i = 0; i < npieces<GROUP, EACH>(ncol); i++) {
        const f8 x = unpack(EACH ? mine[EACH ? i : 0] : load_piece<K, GROUP>(from, m, i, ncol, vectors));
#pragma unroll
        for (int j = 0; j < WIDTH; j++)
            sum += x.v[j];
    }
    const float mean = group_sum<GROUP>(sum) / (float)ncol;
#pragma unroll KEPT < EACH>
    for (int i = 0; i < npieces<GROUP, EACH>(ncol); i++) {
        int64_t col;
        const int n = piece_of<GROUP>(m, i, ncol, &col);
        const f8 x = unpack(EACH ? mine[EACH ? i : 0] : load_piece<K, GROUP>(from, m, i, ncol, vectors));
#pragma unroll
        for (int j = 0; j < WIDTH; j++)
            squares += j < n ? (x.v[j] - mean) * (x.v[j] - mean) : 0.0f;
    }
    return moments{ mean, 1.0f / sqrtf(group_sum<GROUP>(squares) / (float)ncol + eps) };
}

template <types K, int GROUP, int EACH>
__global__ void __launch_bounds__(THREADS) modulate_rows(struct kern_modulate w, bool vectors)
{
    const member m = group_of_thread<GROUP>(w.nrow, 1, w.ncol);
    raw8<K> mine[KEPT<EACH>] = {};
#pragma unroll
    for (int i = 0; i < EACH; i++)
        mine[i] = load_piece<K, GROUP>(w.x, m, i, w.ncol, vectors);
    const moments of = moments_of<K, GROUP, EACH>(w.x, m, mine, w.ncol, w.eps, vectors);
#pragma unroll KEPT < EACH>
    for (int i = 0; i < npieces<GROUP, EACH>(w.ncol); i++) {
        int64_t col;
        const int n = piece_of<GROUP>(m, i, w.ncol, &col);
        if (n == 0)
            continue;
        const bool whole = vectors && n == WIDTH;
        f8 x = EACH ? unpack(mine[EACH ? i : 0]) : load8<K>(w.x, m.row, col, n, whole);
        const f8 shift = load8<ALL_F32>(floats(w.shift, w.ncol), 0, col, n, whole),
                 scale = load8<ALL_F32>(floats(w.scale, w.ncol), 0, col, n, whole);
#pragma unroll
        for (int j = 0; j < WIDTH; j++)
            x.v[j] = (x.v[j] - of.mean) * of.rstd * (1.0f + scale.v[j]) + shift.v[j];
        store8<K>(w.y, m.row, col, n, whole, x);
    }
}

/* g = dy·(1 + scale) of a piece; 0 beyond the row. */
__device__ __forceinline__ f8 scaled(const f8 &dy, const float *scale, int64_t ncol, int64_t col, int n, bool whole)
{
    f8 g = n ? load8<ALL_F32>(floats(scale, ncol), 0, col, n, whole) : f8();
#pragma unroll
    for (int j = 0; j < WIDTH; j++)
        g.v[j] = dy.v[j] * (1.0f + g.v[j]);
    return g;
}

template <types K, int GROUP, int EACH>
__global__ void __launch_bounds__(THREADS) modulate_grad_rows(struct kern_modulate_grad w, bool vectors)
{
    const member m = group_of_thread<GROUP>(w.nrow, 1, w.ncol);
    raw8<K> mine[KEPT<EACH>] = {}, grads[KEPT<EACH>] = {};
    float sum = 0, product = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        mine[i] = load_piece<K, GROUP>(w.x, m, i, w.ncol, vectors);
        grads[i] = load_piece<K, GROUP>(w.dy, m, i, w.ncol, vectors);
    }
    const moments of = moments_of<K, GROUP, EACH>(w.x, m, mine, w.ncol, w.eps, vectors);
#pragma unroll KEPT < EACH>
    for (int i = 0; i < npieces<GROUP, EACH>(w.ncol); i++) {
        int64_t col;
        const int n = piece_of<GROUP>(m, i, w.ncol, &col);
        const f8 x = unpack(EACH ? mine[EACH ? i : 0] : load_piece<K, GROUP>(w.x, m, i, w.ncol, vectors));
        const f8 g = scaled(unpack(EACH ? grads[EACH ? i : 0] : load_piece<K, GROUP>(w.dy, m, i, w.ncol, vectors)),
                            w.scale, w.ncol, col, n, vectors && n == WIDTH);
#pragma unroll
        for (int j = 0; j < WIDTH; j++) {
            sum += g.v[j];
            product += g.v[j] * (x.v[j] - of.mean);
        }
    }
    const float of_g = group_sum<GROUP>(sum) / (float)w.ncol,
                of_product = group_sum<GROUP>(product) / (float)w.ncol * of.rstd * of.rstd;
#pragma unroll KEPT < EACH>
    for (int i = 0; i < npieces<GROUP, EACH>(w.ncol); i++) {
        int64_t col;
        const int n = piece_of<GROUP>(m, i, w.ncol, &col);
        if (n == 0)
            continue;
        const bool whole = vectors && n == WIDTH;
        const f8 x = EACH ? unpack(mine[EACH ? i : 0]) : load8<K>(w.x, m.row, col, n, whole);
        f8 dx = scaled(EACH ? unpack(grads[EACH ? i : 0]) : load8<K>(w.dy, m.row, col, n, whole), w.scale, w.ncol, col,
                       n, whole),
           add = {};
        if (w.add.data)
            add = load8<K>(w.add, m.row, col, n, whole);
#pragma unroll
        for (int j = 0; j < WIDTH; j++)
            dx.v[j] = add.v[j] + of.rstd * (dx.v[j] - of_g - (x.v[j] - of.mean) * of_product);
        store8<K>(w.dx, m.row, col, n, whole, dx);
    }
}

template <types K> void run_modulate(struct kern_stream *stream, const struct kern_modulate *w, bool vectors)
{
#define ROWS(GROUP, EACH) \
    launch(stream, modulate_rows<K, GROUP, EACH>, blocks_for(w->nrow, THREADS / (GROUP)), THREADS, \
           sizeof(block_parts<float>), *w, vectors)
    FOR_GROUP(w->ncol, ROWS);
#undef ROWS
}

template <types K> void run_modulate_grad(struct kern_stream *stream, const struct kern_modulate_grad *w, bool vectors)
{
#define ROWS(GROUP, EACH) \
    launch(stream, modulate_grad_rows<K, GROUP, EACH>, blocks_for(w->nrow, THREADS / (GROUP)), THREADS, \
           sizeof(block_parts<float>), *w, vectors)
    FOR_GROUP(w->ncol, ROWS);
#undef ROWS
}

struct gate_op {
    struct kern_gate g;
    bool vectors;
    template <types K> __device__ void at(int64_t row, int64_t col, int n, bool whole) const
    {
        f8 x = load8<K>(g.x, row, col, n, whole), add = {};
        const f8 gate = load8<ALL_F32>(floats(g.gate, g.ncol), 0, col, n, whole && vectors);
        if (g.add.data)
            add = load8<K>(g.add, row, col, n, whole);
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            x.v[i] = add.v[i] + gate.v[i] * x.v[i];
        store8<K>(g.y, row, col, n, whole, x);
    }
};

struct silu_op {
    struct kern_mat y;
    struct kern_cmat x;
    template <types K> __device__ void at(int64_t row, int64_t col, int n, bool whole) const
    {
        f8 v = load8<K>(x, row, col, n, whole);
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            v.v[i] *= sigmoid<K>(v.v[i]);
        store8<K>(y, row, col, n, whole, v);
    }
};

enum { LANES = 16 }; /* per row of squared errors: a latent pixel has few channels */

template <types K> __global__ void __launch_bounds__(THREADS) square_errors(struct kern_square_error e, bool vectors)
{
    const int64_t row = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / LANES;
    const bool there = row < e.nrow;
    float sum = 0;
    for (int64_t c = threadIdx.x % LANES * WIDTH; there && c < e.ncol; c += LANES * WIDTH) {
        const int n = e.ncol - c < WIDTH ? (int)(e.ncol - c) : WIDTH;
        const bool whole = vectors && n == WIDTH;
        f8 d = load8<K>(e.x, row, c, n, whole);
        const f8 target = load8<K>(e.target, row, c, n, whole);
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            d.v[i] -= target.v[i];
            sum += d.v[i] * d.v[i];
            d.v[i] *= 2.0f * e.grad_factor;
        }
        if (e.dx.data)
            store8<K>(e.dx, row, c, n, whole, d);
    }
    sum = group_sum<LANES>(sum);
    if (there && threadIdx.x % LANES == 0)
        e.loss[row] = e.factor * sum;
}

/* Rows are the pixels of y. */
struct enlarge_op {
    struct kern_mat y;
    struct kern_cmat x;
    uint32_t width; /* of y */
    template <types K> __device__ void at(int64_t row, int64_t col, int n, bool whole) const
    {
        const uint32_t down = (uint32_t)row / width, right = (uint32_t)row % width;
        const int64_t from = (int64_t)(down / 2) * (width / 2) + right / 2;
        store8<K>(y, row, col, n, whole, load8<K>(x, from, col, n, whole));
    }
};

} // namespace

void cuda_modulate(struct kern_stream *stream, const struct kern_modulate *w)
{
    const bool vectors = aligned({ w->x, w->shift, w->scale, w->y });
    switch (types_of({ w->x, w->y })) {
    case ALL_F32: run_modulate<ALL_F32>(stream, w, vectors); break;
    case ALL_BF16: run_modulate<ALL_BF16>(stream, w, vectors); break;
    case MIXED: run_modulate<MIXED>(stream, w, vectors); break;
    }
}

void cuda_modulate_grad(struct kern_stream *stream, const struct kern_modulate_grad *w)
{
    const bool vectors = aligned({ w->x, w->dy, w->scale, w->add, w->dx });
    switch (types_of({ w->x, w->dy, w->add, w->dx })) {
    case ALL_F32: run_modulate_grad<ALL_F32>(stream, w, vectors); break;
    case ALL_BF16: run_modulate_grad<ALL_BF16>(stream, w, vectors); break;
    case MIXED: run_modulate_grad<MIXED>(stream, w, vectors); break;
    }
}

void cuda_gate(struct kern_stream *stream, const struct kern_gate *g)
{
    for_eights(stream, { g->x, g->add, g->y }, g->nrow, g->ncol, gate_op{ *g, aligned({ g->gate }) });
}

void cuda_silu(struct kern_stream *stream, struct kern_mat y, struct kern_cmat x, int64_t nrow, int64_t ncol)
{
    for_elements(stream, { y, x }, nrow, ncol, silu_op{ y, x });
}

void cuda_square_error(struct kern_stream *stream, const struct kern_square_error *e)
{
    const bool vectors = aligned({ e->x, e->target, e->dx });
    const dim3 grid = blocks_for(e->nrow, THREADS / LANES);
    switch (types_of({ e->x, e->target, e->dx })) {
    case ALL_F32: launch(stream, square_errors<ALL_F32>, grid, THREADS, 0, *e, vectors); break;
    case ALL_BF16: launch(stream, square_errors<ALL_BF16>, grid, THREADS, 0, *e, vectors); break;
    case MIXED: launch(stream, square_errors<MIXED>, grid, THREADS, 0, *e, vectors); break;
    }
}

void cuda_enlarge(struct kern_stream *stream, struct kern_mat y, struct kern_cmat x, int64_t height, int64_t width,
                  int64_t nchannel)
{
    for_eights(stream, { y, x }, 4 * height * width, nchannel, enlarge_op{ y, x, (uint32_t)(2 * width) });
}
