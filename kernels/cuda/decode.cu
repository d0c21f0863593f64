/* Products of matrices with one vector: a warp a row, over the rows of all matrices of a call. Each weight is read once. */
#include "cuda/ops.h"
#include "cuda/reduce.cuh"
#include "cuda/vec.cuh"

namespace {

enum { PARTS = 8 }; /* of a launch */

struct parts {
    int64_t k;
    struct kern_cmat x;
    struct kern_gemv_part part[PARTS];
    bool vectors[PARTS];
    int n;
};

__device__ __forceinline__ float dot_row(const struct kern_cmat &w, int64_t row, const struct kern_cmat &x, int64_t k, bool vectors)
{
    float sum = 0;
    for (int64_t col = (int64_t)(threadIdx.x % WARP) * WIDTH; col < k; col += WARP * WIDTH) {
        const int n = k - col < WIDTH ? (int)(k - col) : WIDTH;
        const f8 a = load8<MIXED>(w, row, col, n, vectors && n == WIDTH), b = load8<MIXED>(x, 0, col, n, vectors && n == WIDTH);
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            sum += a.v[i] * b.v[i];
    }
    return warp_sum(sum);
}

__device__ __forceinline__ void finish_row(const struct kern_gemv_part &p, int64_t row, float sum)
{
    if (p.bias.data)
        sum += load1<MIXED>(p.bias, 0, row);
    if (p.add.data)
        sum += load1<MIXED>(p.add, 0, row);
    store1<MIXED>(p.y, 0, row, sum);
}

__global__ void __launch_bounds__(THREADS) dot_rows(parts all)
{
    int64_t row = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / WARP;
    int i = 0;
    for (; i < all.n && row >= all.part[i].n; i++)
        row -= all.part[i].n;
    if (i == all.n)
        return;
    const struct kern_gemv_part &p = all.part[i];
    float sum = p.alpha * dot_row(p.w, row, all.x, all.k, all.vectors[i]);
    if (p.r)
        sum += dot_row(p.b, row, kern_cmat{p.s, p.r, KERN_F32}, p.r, false);
    if (threadIdx.x % WARP == 0)
        finish_row(p, row, sum);
}

} // namespace

void cuda_gemv(struct kern_stream *stream, const struct kern_gemv *g)
{
    if (!cuda_check(stream, g->k >= 0, "gemv: negative shape"))
        return;
    for (int from = 0; from < g->nparts; from += PARTS) {
        parts all = {};
        int64_t nrow = 0;
        all.k = g->k;
        all.x = g->x;
        for (; all.n < PARTS && from + all.n < g->nparts; all.n++) {
            all.part[all.n] = g->parts[from + all.n];
            all.vectors[all.n] = aligned({all.part[all.n].w, one_row(g->x)});
            nrow += all.part[all.n].n;
        }
        launch(stream, dot_rows, blocks_for(nrow, THREADS / WARP), THREADS, 0, all);
    }
}
