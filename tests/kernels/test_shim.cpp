/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that the shim detects faults. A kernel without its barrier gives different results, and so does one that reads
 * a copy or a product before waiting for it (if these complete late). A kernel whose products read unpublished copies
 * is stopped. Correct kernels give correct results in every order of threads. */
#include "cuda/shim/device.h"
#include "cuda/warpgroup.cuh"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

enum { N = 64, ORDERS = 6 };

struct memory {
    float x[N];
};

/* Reverses `in`; without BARRIER it has a race. */
template <bool BARRIER> __global__ void reverse(float *out, const float *in)
{
    memory &m = shared_memory<memory>();
    m.x[threadIdx.x] = in[threadIdx.x];
    if (BARRIER)
        __syncthreads();
    out[threadIdx.x] = m.x[N - 1 - threadIdx.x];
}

struct pieces {
    uint4 x[N];
};

template <bool WAIT> __global__ void fetch(uint4 *out, const uint4 *in)
{
    pieces &m = shared_memory<pieces>();
    copy_async(&m.x[threadIdx.x], &in[threadIdx.x], 16);
    copy_commit();
    if (WAIT)
        copy_wait<0>();
    out[threadIdx.x] = m.x[threadIdx.x];
    copy_wait<0>();
}

struct alignas(1024) square {
    uint16_t x[SLAB][SLAB];
};

/* c = B · B for a swizzled square of bf16, read as rows and transposed. WAIT: waits for the product; PUBLISH: publishes
 * the copies. */
template <bool WAIT, bool PUBLISH> __global__ void multiply(float *out, const uint16_t *in)
{
    square &m = shared_memory<square>();
    float c[SLAB / 8][4];
    uint32_t a[4][4];
    for (int i = (int)threadIdx.x; i < SLAB * SLAB / 8; i += WARPGROUP)
        copy_async(&m.x[i / 8][(i ^ i / 8) % 8 * 8], in + i * 8, 16);
    copy_commit();
    copy_wait<0>();
    if (PUBLISH)
        group_publish();
    __syncthreads();
    const int lane = (int)threadIdx.x % 32, row = (int)threadIdx.x / 32 * 16 + lane % 16;
    for (int k = 0; k < 4; k++)
        load_matrices(a[k], &m.x[row][((2 * k + lane / 16) ^ row) % 8 * 8]);
    group_begin<SLAB>(c);
    for (int k = 0; k < 4; k++)
        group_multiply<SLAB, true>(c, a[k], group_matrix<SLAB>(&m.x[16 * k][0]), k > 0);
    group_commit();
    if (WAIT)
        group_wait<0>();
    else
        group_wait<1>();
    for (int i = 0; i < SLAB / 8; i++)
        for (int e = 0; e < 4; e++)
            out[((int)threadIdx.x / 32 * 16 + lane / 4 + e / 2 * 8) * SLAB + i * 8 + lane % 4 * 2 + e % 2] = c[i][e];
    group_wait<0>();
}

static bool multiplied(struct kern_stream *stream, void (*kernel)(float *, const uint16_t *))
{
    alignas(16) static uint16_t in[SLAB * SLAB];
    static float out[SLAB * SLAB];
    for (int i = 0; i < SLAB * SLAB; i++)
        in[i] = narrow((float)(i * 7 % 13 - 6));
    launch(stream, kernel, dim3(1), WARPGROUP, sizeof(square), static_cast<float *>(out),
           static_cast<const uint16_t *>(in));
    for (int i = 0; i < SLAB * SLAB; i++) {
        float sum = 0;
        for (int k = 0; k < SLAB; k++)
            sum += widen(in[i / SLAB * SLAB + k]) * widen(in[k * SLAB + i % SLAB]);
        if (!(out[i] == sum))
            return false;
    }
    return true;
}

/* Returns true if the shim ends a process that runs this kernel. */
static bool ended(struct kern_stream *stream, void (*kernel)(float *, const uint16_t *))
{
    int status = 0;
    const pid_t child = fork();
    if (child == 0) {
        if (!freopen("/dev/null", "w", stderr))
            _exit(2);
        multiplied(stream, kernel);
        _exit(0);
    }
    return waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

/* Descriptors of Triton 3.9 for sm_90, without addresses, for bf16 tiles swizzled by 128 and by 64 bytes. They are
 * known to work on hardware, unlike the shim. */
template <int WIDTH> __global__ void describe(uint64_t *out, uint64_t expected)
{
    square &m = shared_memory<square>();
    for (int row = 0; row < SLAB; row += 8)
        if (group_matrix<WIDTH>(&m.x[row][0]) != (expected | (uint64_t)row * 8))
            *out = group_matrix<WIDTH>(&m.x[row][0]);
}

template <int WIDTH> static bool described(struct kern_stream *stream, uint64_t expected)
{
    uint64_t other = 0;
    launch(stream, describe<WIDTH>, dim3(1), 32, sizeof(square), &other, expected);
    return other == 0;
}

static bool reversed(struct kern_stream *stream, void (*kernel)(float *, const float *))
{
    float in[N], out[N];
    for (int i = 0; i < N; i++)
        in[i] = (float)i;
    launch(stream, kernel, dim3(1), N, sizeof(memory), static_cast<float *>(out), static_cast<const float *>(in));
    for (int i = 0; i < N; i++)
        if (!(out[i] == in[N - 1 - i]))
            return false;
    return true;
}

static bool fetched(struct kern_stream *stream, void (*kernel)(uint4 *, const uint4 *))
{
    uint4 in[N], out[N];
    for (unsigned i = 0; i < N; i++)
        in[i] = uint4{ i, i + 1, i + 2, i + 3 };
    launch(stream, kernel, dim3(1), N, sizeof(pieces), static_cast<uint4 *>(out), static_cast<const uint4 *>(in));
    return memcmp(in, out, sizeof(in)) == 0;
}

static int expect(bool got, bool wanted, const char *what, int order)
{
    if (got != wanted)
        fprintf(stderr, "%s, order %d: %s\n", what, order,
                got ? "right, and should not be" : "wrong, and should be right");
    return got != wanted;
}

int main()
{
    struct kern_stream stream = {};
    int nbad = expect(described<SLAB>(&stream, 0x4000004000000000) && described<HALF_SLAB>(&stream, 0x8000002000000000),
                      true, "descriptors", 0);
    for (int order = 0; order < ORDERS; order++) {
        cuda_shim_order((uint64_t)order);
        nbad += expect(reversed(&stream, reverse<true>), true, "with a barrier", order);
        nbad += expect(reversed(&stream, reverse<false>), false, "without a barrier", order);
        nbad += expect(fetched(&stream, fetch<true>), true, "with a wait", order);
        nbad += expect(fetched(&stream, fetch<false>), order % 2 != 0, "without a wait",
                       order); /* odd: copies and products complete early */
        nbad += expect(multiplied(&stream, multiply<true, true>), true, "a product with a wait", order);
        nbad += expect(multiplied(&stream, multiply<false, true>), order % 2 != 0, "a product without a wait", order);
        nbad += expect(ended(&stream, multiply<true, false>), true, "copies that were not published", order);
    }
    return nbad != 0;
}
