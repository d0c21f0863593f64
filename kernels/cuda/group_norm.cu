/* SPDX-License-Identifier: Apache-2.0 */
/* GroupNorm. Mean and squared distance from it are taken in blocks of pixels; a block of threads per group joins them,
 * so that the picture is read once for both. */
#include "cuda/images.h"
#include "cuda/reduce.cuh"
#include "cuda/sigmoid.cuh"

namespace {

/* Of a group in a block of pixels. */
struct moments {
    double mean, distance; /* Σ (x - mean)² */
};

/* A call, and the parts of its scratch. */
struct work {
    struct kern_group_norm g;
    int64_t nblock;
    struct moments *moments; /* (nblock, ngroup) */
    float *means, *scales;   /* (nchannel) the mean of each channel, and rstd·gamma */
};

__device__ __forceinline__ int64_t pixels_of(const struct kern_group_norm &g, int64_t block)
{
    const int64_t left = g.npixel - block * KERN_ROW_BLOCK;
    return left < KERN_ROW_BLOCK ? left : (int64_t)KERN_ROW_BLOCK;
}

/* A block of threads takes a group in a block of pixels. */
template <types K> __global__ void __launch_bounds__(THREADS) measure(work w)
{
    const struct kern_group_norm &g = w.g;
    block_parts<double> &parts = shared_memory<block_parts<double>>();
    const uint32_t width = (uint32_t)(g.nchannel / g.ngroup);
    const int64_t block = blockIdx.x, n = pixels_of(g, block) * width, row0 = block * KERN_ROW_BLOCK,
                  col0 = (int64_t)blockIdx.y * width;
    double sum = 0, distance = 0;
    for (uint32_t i = threadIdx.x; i < n; i += THREADS)
        sum += (double)load1<K>(g.x, row0 + i / width, col0 + i % width);
    const double mean = block_sum<THREADS>(parts, sum) / (double)n;
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
        const double d = (double)load1<K>(g.x, row0 + i / width, col0 + i % width) - mean;
        distance += d * d;
    }
    distance = block_sum<THREADS>(parts, distance);
    if (threadIdx.x == 0)
        w.moments[block * g.ngroup + blockIdx.y] = moments{ mean, distance };
}

/* A block of threads takes a group. The distance from the mean of all is that from a block's own, and the distance of
 * both means. */
__global__ void __launch_bounds__(THREADS) join(work w)
{
    const struct kern_group_norm &g = w.g;
    block_parts<double> &parts = shared_memory<block_parts<double>>();
    const int64_t group = blockIdx.x, width = g.nchannel / g.ngroup;
    const double n = (double)g.npixel * (double)width;
    double sum = 0, distance = 0;
    for (int64_t b = threadIdx.x; b < w.nblock; b += THREADS)
        sum += w.moments[b * g.ngroup + group].mean * (double)(pixels_of(g, b) * width);
    const double mean = block_sum<THREADS>(parts, sum) / n;
    for (int64_t b = threadIdx.x; b < w.nblock; b += THREADS) {
        const struct moments m = w.moments[b * g.ngroup + group];
        distance += m.distance + (m.mean - mean) * (m.mean - mean) * (double)(pixels_of(g, b) * width);
    }
    const double rstd = 1 / sqrt(block_sum<THREADS>(parts, distance) / n + (double)g.eps);
    for (int64_t c = group * width + threadIdx.x; c < (group + 1) * width; c += THREADS) {
        w.means[c] = (float)mean;
        w.scales[c] = (float)((double)g.gamma[c] * rstd);
    }
}

struct apply_op {
    work w;
    bool vectors;
    __device__ __forceinline__ f8 of_channels(const float *x, int64_t col, int n, bool whole) const
    {
        return load8<ALL_F32>(kern_cmat{ x, w.g.nchannel, KERN_F32 }, 0, col, n, whole && vectors);
    }
    template <types K> __device__ void at(int64_t row, int64_t col, int n, bool whole) const
    {
        f8 x = load8<K>(w.g.x, row, col, n, whole);
        const f8 mean = of_channels(w.means, col, n, whole), scale = of_channels(w.scales, col, n, whole),
                 beta = of_channels(w.g.beta, col, n, whole);
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            const float y = (x.v[i] - mean.v[i]) * scale.v[i] + beta.v[i];
            x.v[i] = w.g.silu ? y * sigmoid<K>(y) : y;
        }
        store8<K>(w.g.y, row, col, n, whole, x);
    }
};

work work_of(const struct kern_group_norm *g)
{
    const int64_t nblock = kern_row_blocks(g->npixel);
    struct moments *moments = reinterpret_cast<struct moments *>(g->scratch);
    float *means = reinterpret_cast<float *>(moments + nblock * g->ngroup);
    return work{ *g, nblock, moments, means, means + g->nchannel };
}

} // namespace

void cuda_group_norm(struct kern_stream *stream, const struct kern_group_norm *g)
{
    if (!cuda_check(stream, g->ngroup > 0 && g->nchannel % g->ngroup == 0,
                    "group_norm: groups of equal size are wanted") ||
        g->npixel <= 0)
        return;
    const work w = work_of(g);
    const dim3 grid((unsigned)w.nblock, (unsigned)g->ngroup);
    if (g->x.dtype == KERN_F32)
        launch(stream, measure<ALL_F32>, grid, THREADS, sizeof(block_parts<double>), w);
    else
        launch(stream, measure<ALL_BF16>, grid, THREADS, sizeof(block_parts<double>), w);
    launch(stream, join, dim3((unsigned)g->ngroup), THREADS, sizeof(block_parts<double>), w);
    for_eights(stream, { g->x, g->y }, g->npixel, g->nchannel, apply_op{ w, aligned({ g->beta, w.means, w.scales }) });
}
