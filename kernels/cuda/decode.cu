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

enum { STEP = WARP * WIDTH }; /* columns that a warp has at a time */
template <types K> constexpr int AHEAD = K == ALL_BF16 ? 4 : 2; /* steps that are on their way before the first is used */

__device__ __forceinline__ float add_products(float sum, const f8 &a, const f8 &b)
{
#pragma unroll
    for (int i = 0; i < WIDTH; i++)
        sum += a.v[i] * b.v[i];
    return sum;
}

template <types K> __device__ __forceinline__ float dot_row(const struct kern_cmat &w, int64_t row, const struct kern_cmat &x, int64_t k, bool vectors)
{
    int64_t col = (int64_t)(threadIdx.x % WARP) * WIDTH;
    float sum = 0;
    for (; vectors && col + (AHEAD<K> - 1) * STEP + WIDTH <= k; col += AHEAD<K> * STEP) {
        raw8<K> a[AHEAD<K>], b[AHEAD<K>];
#pragma unroll
        for (int i = 0; i < AHEAD<K>; i++)
            a[i] = load_raw8<K>(w, row, col + i * STEP, WIDTH, true);
#pragma unroll
        for (int i = 0; i < AHEAD<K>; i++)
            b[i] = load_raw8<K>(x, 0, col + i * STEP, WIDTH, true);
#pragma unroll
        for (int i = 0; i < AHEAD<K>; i++)
            sum = add_products(sum, unpack(a[i]), unpack(b[i]));
    }
    for (; col < k; col += STEP) {
        const int n = k - col < WIDTH ? (int)(k - col) : WIDTH;
        sum = add_products(sum, load8<K>(w, row, col, n, vectors && n == WIDTH), load8<K>(x, 0, col, n, vectors && n == WIDTH));
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

/* Four blocks a multiprocessor leave the registers for what is on its way: unasked, the compiler saves them and waits in between. */
template <types K> __global__ void __launch_bounds__(THREADS, 4) dot_rows(parts all)
{
    int64_t row = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / WARP;
    int i = 0;
    for (; i < all.n && row >= all.part[i].n; i++)
        row -= all.part[i].n;
    if (i == all.n)
        return;
    const struct kern_gemv_part &p = all.part[i];
    float sum = p.alpha * dot_row<K>(p.w, row, all.x, all.k, all.vectors[i]);
    if (p.r)
        sum += dot_row<MIXED>(p.b, row, kern_cmat{p.s, p.r, KERN_F32}, p.r, false);
    if (threadIdx.x % WARP == 0)
        finish_row(p, row, sum);
}

void run_dot_rows(struct kern_stream *stream, const parts &all, types kind, int64_t nrow)
{
    const dim3 grid = blocks_for(nrow, THREADS / WARP);
    switch (kind) {
    case ALL_F32:
        launch(stream, dot_rows<ALL_F32>, grid, THREADS, 0, all);
        break;
    case ALL_BF16:
        launch(stream, dot_rows<ALL_BF16>, grid, THREADS, 0, all);
        break;
    case MIXED:
        launch(stream, dot_rows<MIXED>, grid, THREADS, 0, all);
        break;
    }
}

} // namespace

void cuda_gemv(struct kern_stream *stream, const struct kern_gemv *g)
{
    if (!cuda_check(stream, g->k >= 0, "gemv: negative shape"))
        return;
    for (int from = 0; from < g->nparts; from += PARTS) {
        parts all = {};
        types kind = types_of({g->x});
        int64_t nrow = 0;
        all.k = g->k;
        all.x = g->x;
        for (; all.n < PARTS && from + all.n < g->nparts; all.n++) {
            all.part[all.n] = g->parts[from + all.n];
            all.vectors[all.n] = aligned({all.part[all.n].w, one_row(g->x)});
            kind = types_of({all.part[all.n].w, g->x}) == kind ? kind : MIXED;
            nrow += all.part[all.n].n;
        }
        run_dot_rows(stream, all, kind, nrow);
    }
}
