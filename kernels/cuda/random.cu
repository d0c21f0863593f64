/* SPDX-License-Identifier: Apache-2.0 */
/* Dropout and uniform numbers. */
#include "cuda/random.cuh"

#include "cuda/ops.h"

namespace {

struct uniform_op {
    struct kern_mat y;
    struct kern_philox rng;
    uint64_t index0;
    float low, range;
    template <types K> __device__ void at(int64_t row, int64_t col, int n, bool whole) const
    {
        f8 u = uniform8(rng, index0 + (uint64_t)col);
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            u.v[i] = low + range * u.v[i];
        store8<K>(y, row, col, n, whole, u);
    }
};

} // namespace

void cuda_uniform(struct kern_stream *stream, float *dst, int64_t nelem, struct kern_philox rng, uint64_t index0,
                  float low, float high)
{
    const struct kern_mat y = { dst, nelem, KERN_F32 };
    for_eights(stream, { dst }, 1, nelem, uniform_op{ y, rng, index0, low, high - low });
}

void cuda_dropout(struct kern_stream *stream, struct kern_mat y, struct kern_cmat x, int64_t nrow, int64_t ncol,
                  const struct kern_dropout *d)
{
    if (d->p > 0 && cuda_check(stream, d->p < 1, "dropout: p must be below 1"))
        for_eights(stream, { y, x }, nrow, ncol, dropout_op{ y, x, *d, 1.0f / (1.0f - d->p) });
    else
        cuda_cast(stream, y, x, nrow, ncol);
}
