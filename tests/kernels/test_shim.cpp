/* The shim itself: it must show what it is there to show. A kernel without its barrier, and one that reads a copy it did not wait for, give other results than
 * the sound ones (the latter where copies come late); and the sound ones give theirs in every order of threads. */
#include "cuda/mma.cuh"
#include "cuda/shim/device.h"

#include <cstdio>

enum { N = 64, ORDERS = 6 };

struct memory {
    float x[N];
};

/* out is in reversed. */
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
        in[i] = uint4{i, i + 1, i + 2, i + 3};
    launch(stream, kernel, dim3(1), N, sizeof(pieces), static_cast<uint4 *>(out), static_cast<const uint4 *>(in));
    return memcmp(in, out, sizeof(in)) == 0;
}

static int expect(bool got, bool wanted, const char *what, int order)
{
    if (got != wanted)
        fprintf(stderr, "%s, order %d: %s\n", what, order, got ? "right, and should not be" : "wrong, and should be right");
    return got != wanted;
}

int main()
{
    struct kern_stream stream = {};
    int nbad = 0;
    for (int order = 0; order < ORDERS; order++) {
        cuda_shim_order((uint64_t)order);
        nbad += expect(reversed(&stream, reverse<true>), true, "with a barrier", order);
        nbad += expect(reversed(&stream, reverse<false>), false, "without a barrier", order);
        nbad += expect(fetched(&stream, fetch<true>), true, "with a wait", order);
        nbad += expect(fetched(&stream, fetch<false>), order % 2 != 0, "without a wait", order); /* odd: copies are early */
    }
    return nbad != 0;
}
