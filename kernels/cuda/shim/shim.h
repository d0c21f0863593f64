/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA for a C++ compiler, as far as the kernels use it: barriers, warp shuffles and votes, and, through mma.cuh and
 * warpgroup.cuh, products and asynchronous copies. Each thread of a block is a fiber; blocks run one after another.
 * Fibers run in an order drawn from shim_seed and switch wherever they wait, so that a missing barrier changes results
 * between seeds. Shared memory starts as NaN, and AddressSanitizer detects accesses beyond the size of the launch. The
 * shim tells nothing about speed. */
#ifndef CUDA_SHIM_H
#define CUDA_SHIM_H

#include "cuda/stream.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(16) float4 {
    float x, y, z, w;
};

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

/* The order in which fibers run: 0 ascending, 1 descending, else random. If odd, asynchronous copies and products
 * complete at once (if even, as late as allowed), and a warp runs as far as it can before the next one. */
extern uint64_t shim_seed;

[[noreturn]] void shim_bug(const char *words);

typedef void (*shim_body)(void *ctx);
void shim_run(dim3 grid, unsigned nthread, size_t shared_nbytes, shim_body body, void *ctx);
void *shim_shared(size_t nbytes);
void shim_barrier(void);

/* All lanes of a warp must call it with the same `together`, which is called once with the arguments of all lanes. */
typedef void (*shim_warp_fn)(void *const lane[32]);
void shim_warp(shim_warp_fn together, void *mine);

/* All threads of a warpgroup must call it with the same `together`, which is called once with copies of all arguments:
 * at once, or in the shim_group_wait that covers its commit group (all but the last nleft). All threads must call
 * shim_group_commit and shim_group_wait too. */
typedef void (*shim_group_fn)(void *const lane[128]);
void shim_group(shim_group_fn together, const void *mine, size_t nbytes);
void shim_group_commit(void);
void shim_group_wait(unsigned nleft);
/* Publishes this thread's finished copies: after the next barrier a warpgroup's products may read them. They must not
 * read unpublished copies. */
void shim_publish(void);

/* An asynchronous copy: it completes at the latest in the wait that covers it, and may complete earlier. */
void shim_copy_async(void *dst, const void *src, size_t nbytes, size_t nvalid);
void shim_copy_commit(void);
void shim_copy_wait(unsigned nleft);

/* Runs a launch: a test's device calls the body per thread with shim_run. It may keep a copy of ctx (nbytes). */
void shim_launch(struct kern_stream *stream, dim3 grid, unsigned nthread, size_t shared_nbytes, shim_body body,
                 void *ctx, size_t nbytes);

template <typename... Params, typename... Args>
void launch(struct kern_stream *stream, void (*kernel)(Params...), dim3 grid, unsigned nthread, size_t shared_nbytes,
            Args... args)
{
    if (stream->status)
        return;
    auto body = [=] { kernel(args...); };
    static_assert(std::is_trivially_copyable<decltype(body)>::value);
    shim_launch(
        stream, grid, nthread, shared_nbytes, [](void *ctx) { (*static_cast<decltype(body) *>(ctx))(); }, &body,
        sizeof(body));
}

template <typename T> T &shared_memory()
{
    return *static_cast<T *>(shim_shared(sizeof(T)));
}

static inline void __syncthreads()
{
    shim_barrier();
}

template <typename T> struct shim_lane {
    T value, result;
    int from;
};

template <typename T> void shim_shuffle(void *const lane[32])
{
    for (int i = 0; i < 32; i++) {
        shim_lane<T> *mine = static_cast<shim_lane<T> *>(lane[i]);
        mine->result = static_cast<const shim_lane<T> *>(lane[mine->from & 31])->value;
    }
}

template <typename T> T __shfl_sync(unsigned, T value, int from)
{
    shim_lane<T> mine = { value, T(), from };
    shim_warp(shim_shuffle<T>, &mine);
    return mine.result;
}

template <typename T> T __shfl_xor_sync(unsigned mask, T value, int with)
{
    return __shfl_sync(mask, value, (int)(threadIdx.x % 32) ^ with);
}

static inline void shim_vote(void *const lane[32])
{
    unsigned votes = 0;
    for (int i = 0; i < 32; i++)
        votes |= (unsigned)(static_cast<shim_lane<unsigned> *>(lane[i])->value != 0) << i;
    for (int i = 0; i < 32; i++)
        static_cast<shim_lane<unsigned> *>(lane[i])->result = votes;
}

static inline unsigned __ballot_sync(unsigned, int vote)
{
    shim_lane<unsigned> mine = { (unsigned)(vote != 0), 0, 0 };
    shim_warp(shim_vote, &mine);
    return mine.result;
}

static inline void __syncwarp()
{
    __ballot_sync(~0u, 0);
}

static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}

static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}

#endif
