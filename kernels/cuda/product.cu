/* SPDX-License-Identifier: Apache-2.0 */
/* See product.cuh. A block of threads computes a tile of C. Sums over k run in blocks of KERN_ROW_BLOCK, and the block
 * sums are added in order. */
#include "cuda/product.cuh"

#include "cuda/matmul.h"
#include "cuda/vec.cuh"

namespace {

enum { TILE = 64, STEP = 16, EACH = 4, PAD = 4, ACROSS = TILE / EACH };

struct strips {
    float a[STEP][TILE + PAD], b[STEP][TILE + PAD];
};

struct sums {
    float v[EACH][EACH];
};

/* Loads a strip (STEP, TILE) of op(X) from (l0, i0), where l runs along k. by_k: k runs along the rows in memory.
 * Elements out of range are 0. */
__device__ __forceinline__ void load_strip(float (*to)[TILE + PAD], const struct kern_cmat &m, bool by_k, int64_t i0,
                                           int64_t ni, int64_t l0, int64_t nl)
{
    for (int e = (int)threadIdx.x; e < TILE * STEP; e += THREADS) {
        const int i = by_k ? e / STEP : e % TILE, l = by_k ? e % STEP : e / TILE;
        const bool there = i0 + i < ni && l0 + l < nl;
        to[l][i] = !there ? 0.0f : by_k ? load1<MIXED>(m, i0 + i, l0 + l) : load1<MIXED>(m, l0 + l, i0 + i);
    }
}

__device__ __forceinline__ void multiply(const strips &s, sums &sum)
{
    const int row = (int)threadIdx.x / ACROSS * EACH, col = (int)threadIdx.x % ACROSS * EACH;
#pragma unroll
    for (int l = 0; l < STEP; l++)
#pragma unroll
        for (int i = 0; i < EACH; i++)
#pragma unroll
            for (int j = 0; j < EACH; j++)
                sum.v[i][j] += s.a[l][row + i] * s.b[l][col + j];
}

__device__ __forceinline__ void fold_into(sums &total, sums &part)
{
#pragma unroll
    for (int i = 0; i < EACH * EACH; i++) {
        total.v[i / EACH][i % EACH] += part.v[i / EACH][i % EACH];
        part.v[i / EACH][i % EACH] = 0;
    }
}

__device__ __forceinline__ void finish(const product &p, int64_t row, int64_t col, float sum)
{
    if (row >= p.m || col >= p.n)
        return;
    sum *= p.alpha;
    if (p.add.data)
        sum += load1<MIXED>(p.add, row, col);
    if (p.bias)
        sum += load1<MIXED>(kern_cmat{ p.bias, 0, p.c.dtype }, 0, col);
    store1<MIXED>(p.c, row, col, sum);
}

__global__ void __launch_bounds__(THREADS) tile_product(product p)
{
    strips &s = shared_memory<strips>();
    const int64_t row0 = (int64_t)blockIdx.x * TILE, col0 = (int64_t)blockIdx.y * TILE;
    sums total = {}, part = {};
    for (int64_t l = 0; l < p.k; l += STEP) {
        if (l % KERN_ROW_BLOCK == 0)
            fold_into(total, part);
        load_strip(s.a, p.a, !p.trans_a, row0, p.m, l, p.k);
        load_strip(s.b, p.b, p.trans_b, col0, p.n, l, p.k);
        __syncthreads();
        multiply(s, part);
        __syncthreads();
    }
    fold_into(total, part);
    for (int i = 0; i < EACH * EACH; i++)
        finish(p, row0 + (int)threadIdx.x / ACROSS * EACH + i / EACH,
               col0 + (int)threadIdx.x % ACROSS * EACH + i % EACH, total.v[i / EACH][i % EACH]);
}

enum { MOST_ACROSS = 65535 }; /* second dimension of a grid: 4 million columns */

/* Returns true if the product was enqueued. */
bool by_library(struct kern_stream *stream, const struct product *p)
{
    if (p->k == 0 || p->a.dtype != p->b.dtype)
        return false;
    if ((p->add.data && p->add.dtype != p->c.dtype) || (p->c.dtype == KERN_BF16 && p->a.dtype == KERN_F32))
        return false;
    struct cuda_matmul lib = {};
    lib.m = p->m, lib.n = p->n, lib.k = p->k;
    lib.a = p->a.data, lib.lda = p->a.pitch, lib.trans_a = p->trans_a;
    lib.b = p->b.data, lib.ldb = p->b.pitch, lib.trans_b = p->trans_b;
    lib.c = p->add.data ? p->add.data : p->c.data, lib.ldc = p->add.data ? p->add.pitch : p->c.pitch;
    lib.d = p->c.data, lib.ldd = p->c.pitch;
    lib.in = p->a.dtype, lib.out = p->c.dtype;
    lib.alpha = p->alpha, lib.beta = p->add.data ? 1.0f : 0.0f;
    lib.bias = p->bias;
    return cuda_matmul_run(stream, &lib);
}

} // namespace

void cuda_product_own(struct kern_stream *stream, const struct product *p)
{
    const dim3 grid(blocks_for(p->m, TILE).x, blocks_for(p->n, TILE).x);
    if (cuda_check(stream, grid.y <= MOST_ACROSS, "product: more columns than 4 million") && p->m > 0 && p->n > 0)
        launch(stream, tile_product, grid, THREADS, sizeof(strips), *p);
}

void cuda_product(struct kern_stream *stream, const struct product *p)
{
    if (!stream->status && !by_library(stream, p))
        cuda_product_own(stream, p);
}
