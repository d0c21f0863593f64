/* SPDX-License-Identifier: Apache-2.0 */
/* Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11;
 * checked against the known answers of Random123). A number depends only on (seed, step, name, index): not on threads,
 * ranks or the order of calls. */
#ifndef KERNELS_RANDOM_H
#define KERNELS_RANDOM_H

#include <kernels/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* key = seed (low, high word); counter = (index/4 low, high, step, name); number i is word index%4 of the block. */
struct kern_philox {
    uint64_t seed;
    uint32_t step;
    uint32_t name; /* XXH32 of the tensor's name, seed 0 */
};

/* The block function itself: ten rounds on counter with key. */
void kern_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* Offsets into the random streams, in memory that kernels read. They change from step to step while recorded launches
 * stay the same. */
struct kern_rng_offset {
    int64_t token0;
    uint32_t step;
};

/* Element (row, col) of a (token, feature) matrix has index (token0 + row) · width + col in the logical tensor. It is
 * kept if its uniform number (u >> 8)·2⁻²⁴ is at least p, and then scaled by 1/(1-p). */
struct kern_dropout {
    float p; /* 0 ≤ p < 1; 0 keeps everything and draws no numbers */
    struct kern_philox rng;
    int64_t token0, width;
    const struct kern_rng_offset
        *rng_offset; /* added to token0 and rng.step when a kernel runs; NULL: nothing is added */
};

/* Adds the offset on the host, which must be able to read it, and clears rng_offset. */
static inline struct kern_dropout kern_dropout_now(struct kern_dropout d)
{
    if (d.rng_offset) {
        d.token0 += d.rng_offset->token0;
        d.rng.step += d.rng_offset->step;
        d.rng_offset = NULL;
    }
    return d;
}

/* dst[i] = low + (high - low)·u(index0 + i), in fp32. */
typedef void kern_uniform_fn(struct kern_stream *, float *dst /* (nelem) */, int64_t nelem, struct kern_philox rng,
                             uint64_t index0, float low, float high);

/* y = x masked and scaled; in place allowed. */
typedef void kern_dropout_fn(struct kern_stream *, struct kern_mat y, struct kern_cmat x, int64_t nrow, int64_t ncol,
                             const struct kern_dropout *);

#ifdef __cplusplus
}
#endif
#endif
