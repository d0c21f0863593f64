/* SPDX-License-Identifier: Apache-2.0 */
/* GroupNorm. Mean and squared distance from it are taken in blocks of pixels and joined in order (Chan et al. 1979), so
 * that the picture is read once for both. */
#include "cpu/image.h"
#include "cpu/work.h"

#include <math.h>
#include <string.h>

enum { MOST_CHANNELS = 8192 };

/* Of a group in a block, or in all blocks so far: in scratch, (nblock + 1, ngroup); the last ones are of the whole
 * picture. */
struct moments {
    double mean, distance; /* Σ (x - mean)² */
};

static struct moments *moments_of(const struct kern_group_norm *g, int64_t block)
{
    return (struct moments *)g->scratch + block * g->ngroup;
}

/* The mean, and rstd·gamma, of each channel of the whole picture. */
static float *factors_of(const struct kern_group_norm *g)
{
    return (float *)moments_of(g, kern_row_blocks(g->npixel) + 1);
}

/* Adds a row of values to sums[channel], or their squared distances from means[channel]. */
static void add_row(const struct cpu_simd *simd, const struct kern_group_norm *g, int64_t row, double *sums,
                    const double *means)
{
    float strip[CPU_STRIP];
    for (int64_t col = 0; col < g->nchannel; col += CPU_STRIP) {
        const int64_t n = g->nchannel - col < CPU_STRIP ? g->nchannel - col : CPU_STRIP;
        const float *x = cpu_load(simd, g->x, row, col, n, strip);
        for (int64_t i = 0; i < n; i++) {
            const double d = (double)x[i] - (means ? means[col + i] : 0);
            sums[col + i] += means ? d * d : d;
        }
    }
}

static double group_sum(const double *sums, int64_t group, int64_t width)
{
    double sum = 0;
    for (int64_t i = 0; i < width; i++)
        sum += sums[group * width + i];
    return sum;
}

static void measure_block(const struct cpu_simd *simd, void *ctx, int64_t block, int64_t row0, int64_t row1)
{
    const struct kern_group_norm *g = ctx;
    const int64_t width = g->nchannel / g->ngroup;
    struct moments *m = moments_of(g, block);
    double sums[MOST_CHANNELS], means[MOST_CHANNELS];
    memset(sums, 0, (size_t)g->nchannel * sizeof *sums);
    for (int64_t row = row0; row < row1; row++)
        add_row(simd, g, row, sums, NULL);
    for (int64_t i = 0; i < g->ngroup; i++)
        m[i].mean = group_sum(sums, i, width) / (double)((row1 - row0) * width);
    for (int64_t i = 0; i < g->nchannel; i++)
        means[i] = m[i / width].mean;
    memset(sums, 0, (size_t)g->nchannel * sizeof *sums);
    for (int64_t row = row0; row < row1; row++)
        add_row(simd, g, row, sums, means);
    for (int64_t i = 0; i < g->ngroup; i++)
        m[i].distance = group_sum(sums, i, width);
}

static void join_blocks(const struct kern_group_norm *g)
{
    const int64_t nblock = kern_row_blocks(g->npixel), width = g->nchannel / g->ngroup;
    struct moments *all = moments_of(g, nblock);
    for (int64_t i = 0; i < g->ngroup; i++) {
        all[i] = moments_of(g, 0)[i];
        for (int64_t b = 1; b < nblock; b++) {
            const struct moments *m = &moments_of(g, b)[i];
            const double before = (double)(b * KERN_ROW_BLOCK * width),
                         more = (double)((b + 1 < nblock ? KERN_ROW_BLOCK : g->npixel - b * KERN_ROW_BLOCK) * width),
                         d = m->mean - all[i].mean;
            all[i].distance += m->distance + d * d * before * more / (before + more);
            all[i].mean += d * more / (before + more);
        }
    }
}

static void make_factors(const struct kern_group_norm *g)
{
    const struct moments *all = moments_of(g, kern_row_blocks(g->npixel));
    const int64_t width = g->nchannel / g->ngroup;
    float *means = factors_of(g), *scales = means + g->nchannel;
    for (int64_t i = 0; i < g->nchannel; i++) {
        const struct moments *m = &all[i / width];
        const double variance = m->distance / ((double)g->npixel * (double)width);
        means[i] = (float)m->mean;
        scales[i] = (float)((double)g->gamma[i] / sqrt(variance + (double)g->eps));
    }
}

static void apply_strip(const struct cpu_simd *simd, void *ctx, int64_t row, int64_t col, int64_t n)
{
    static const float ones[CPU_STRIP] = { [0 ... CPU_STRIP - 1] = 1 };
    const struct kern_group_norm *g = ctx;
    const float *means = factors_of(g) + col, *scales = means + g->nchannel;
    float strip[CPU_STRIP], y[CPU_STRIP];
    const float *x = cpu_load(simd, g->x, row, col, n, strip);
    for (int64_t i = 0; i < n; i++)
        y[i] = (x[i] - means[i]) * scales[i] + g->beta[col + i];
    if (g->silu)
        simd->swiglu(y, y, ones, n);
    cpu_store(simd, g->y, row, col, n, y);
}

void cpu_group_norm(struct kern_stream *stream, const struct kern_group_norm *g)
{
    struct kern_group_norm copy = *g;
    if (!cpu_check(stream, g->ngroup > 0 && g->nchannel % g->ngroup == 0 && g->nchannel <= MOST_CHANNELS,
                   "group_norm: groups of equal size, of at most 8192 channels, are wanted") ||
        g->npixel <= 0)
        return;
    cpu_for_blocks(stream, g->npixel, measure_block, &copy);
    join_blocks(g);
    make_factors(g);
    cpu_for_strips(stream, g->npixel, g->nchannel, apply_strip, &copy);
}
