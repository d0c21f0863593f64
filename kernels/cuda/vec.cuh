/* SPDX-License-Identifier: Apache-2.0 */
/* Access to eight elements of a row at a time, of either type: one 16-byte access if the row allows it. Each kernel is
 * compiled three times: all operands bf16, all fp32, or mixed. Element-wise kernels are launched from here. */
#ifndef CUDA_VEC_CUH
#define CUDA_VEC_CUH

#include "cuda/launch.cuh"

#include <initializer_list>

enum { WIDTH = 8, THREADS = 256 };

/* Types of the operands, as far as known when a kernel is compiled. */
enum types { ALL_F32, ALL_BF16, MIXED };

struct f8 {
    float v[WIDTH];
};

template <types K> __device__ __forceinline__ bool is_f32(enum kern_dtype dtype)
{
    return K == ALL_F32 || (K == MIXED && dtype == KERN_F32);
}

__device__ __forceinline__ float float_of(uint32_t bits)
{
#ifdef __CUDACC__
    return __uint_as_float(bits);
#else
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
#endif
}

__device__ __forceinline__ uint32_t bits_of(float x)
{
#ifdef __CUDACC__
    return __float_as_uint(x);
#else
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
#endif
}

__device__ __forceinline__ float widen(uint16_t x)
{
    return float_of((uint32_t)x << 16);
}

/* Rounds two numbers to nearest even; NaN stays NaN. `low` goes to the lower half. */
__device__ __forceinline__ uint32_t narrow2(float low, float high)
{
#ifdef __CUDACC__
    uint32_t both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
#else
    uint32_t half[2];
    for (int i = 0; i < 2; i++) {
        const uint32_t bits = bits_of(i ? high : low);
        half[i] = (bits & 0x7fffffff) > 0x7f800000 ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    }
    return half[0] | half[1] << 16;
#endif
}

__device__ __forceinline__ uint16_t narrow(float x)
{
    return (uint16_t)narrow2(x, 0);
}

template <types K> __device__ __forceinline__ float load1(struct kern_cmat m, int64_t row, int64_t col)
{
    const int64_t at = row * m.pitch + col;
    return is_f32<K>(m.dtype) ? static_cast<const float *>(m.data)[at]
                              : widen(static_cast<const uint16_t *>(m.data)[at]);
}

template <types K> __device__ __forceinline__ void store1(struct kern_mat m, int64_t row, int64_t col, float x)
{
    const int64_t at = row * m.pitch + col;
    if (is_f32<K>(m.dtype))
        static_cast<float *>(m.data)[at] = x;
    else
        static_cast<uint16_t *>(m.data)[at] = narrow(x);
}

__device__ __forceinline__ f8 unpack(uint4 x)
{
    return f8{ { float_of(x.x << 16), float_of(x.x & 0xffff0000), float_of(x.y << 16), float_of(x.y & 0xffff0000),
                 float_of(x.z << 16), float_of(x.z & 0xffff0000), float_of(x.w << 16), float_of(x.w & 0xffff0000) } };
}

__device__ __forceinline__ f8 unpack(const f8 &x)
{
    return x;
}

__device__ __forceinline__ uint4 pack(const f8 &x)
{
    return uint4{ narrow2(x.v[0], x.v[1]), narrow2(x.v[2], x.v[3]), narrow2(x.v[4], x.v[5]), narrow2(x.v[6], x.v[7]) };
}

/* Loads n elements, 1 … 8; the others are 0. whole: n is 8 and the address is a multiple of 16 bytes. */
template <types K> __device__ __forceinline__ f8 load8(struct kern_cmat m, int64_t row, int64_t col, int n, bool whole)
{
    f8 x = {};
    if (!whole) {
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            x.v[i] = i < n ? load1<K>(m, row, col + i) : 0.0f;
    } else if (is_f32<K>(m.dtype)) {
        const float4 *from = reinterpret_cast<const float4 *>(static_cast<const float *>(m.data) + row * m.pitch + col);
        const float4 a = from[0], b = from[1];
        x = f8{ { a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w } };
    } else {
        x = unpack(*reinterpret_cast<const uint4 *>(static_cast<const uint16_t *>(m.data) + row * m.pitch + col));
    }
    return x;
}

/* Eight elements in their stored form, to save registers until they are unpacked. */
template <types K> struct raw {
    typedef f8 type;
};
template <> struct raw<ALL_BF16> {
    typedef uint4 type;
};
template <types K> using raw8 = typename raw<K>::type;

template <types K>
__device__ __forceinline__ raw8<K> load_raw8(struct kern_cmat m, int64_t row, int64_t col, int n, bool whole)
{
    if constexpr (K != ALL_BF16)
        return load8<K>(m, row, col, n, whole);
    else
        return whole ? *reinterpret_cast<const uint4 *>(static_cast<const uint16_t *>(m.data) + row * m.pitch + col)
                     : pack(load8<K>(m, row, col, n, false));
}

template <types K>
__device__ __forceinline__ void store8(struct kern_mat m, int64_t row, int64_t col, int n, bool whole, const f8 &x)
{
    if (!whole) {
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            if (i < n)
                store1<K>(m, row, col + i, x.v[i]);
    } else if (is_f32<K>(m.dtype)) {
        float4 *to = reinterpret_cast<float4 *>(static_cast<float *>(m.data) + row * m.pitch + col);
        to[0] = float4{ x.v[0], x.v[1], x.v[2], x.v[3] };
        to[1] = float4{ x.v[4], x.v[5], x.v[6], x.v[7] };
    } else {
        *reinterpret_cast<uint4 *>(static_cast<uint16_t *>(m.data) + row * m.pitch + col) = pack(x);
    }
}

/* A const view of a matrix that is also written. */
__device__ __forceinline__ struct kern_cmat as_const(const struct kern_mat &m)
{
    return kern_cmat{ m.data, m.pitch, m.dtype };
}

/* Describes an operand for types_of and aligned. Operands without data are ignored. */
struct operand {
    const void *data;
    int64_t pitch;
    enum kern_dtype dtype;
    operand(struct kern_mat m) : data(m.data), pitch(m.pitch), dtype(m.dtype)
    {
    }
    operand(struct kern_cmat m) : data(m.data), pitch(m.pitch), dtype(m.dtype)
    {
    }
    operand(const float *x) : data(x), pitch(0), dtype(KERN_F32)
    {
    }
};

/* A single row: its pitch does not matter. */
static inline operand one_row(struct kern_cmat m)
{
    m.pitch = 0;
    return m;
}

static inline types types_of(std::initializer_list<operand> all)
{
    bool f32 = false, bf16 = false;
    for (const operand &o : all)
        if (o.data)
            (o.dtype == KERN_F32 ? f32 : bf16) = true;
    return f32 && bf16 ? MIXED : bf16 ? ALL_BF16 : ALL_F32;
}

/* Returns true if every row of every operand starts at a multiple of 16 bytes. fp32 needs no more: it is read in two
 * accesses of 16. */
static inline bool aligned(std::initializer_list<operand> all)
{
    for (const operand &o : all)
        if (o.data && (reinterpret_cast<uintptr_t>(o.data) | (uintptr_t)(o.pitch * kern_dtype_bytes(o.dtype))) % 16)
            return false;
    return true;
}

/* A grid over (nrow, ncol) in groups of eight. */
struct eights {
    int64_t nrow, ncol, per_row;
    bool aligned;
};

/* Row and column of piece i; false past the last. Divides in 32 bits if the numbers fit: a 64-bit division costs more
 * than the work. */
__device__ __forceinline__ bool position_of_piece(const eights &e, int64_t i, int64_t *row, int64_t *col)
{
    if (i >= e.nrow * e.per_row)
        return false;
    if (e.nrow == 1) {
        *row = 0;
        *col = i * WIDTH;
    } else if (e.nrow * e.per_row <= 0x7fffffff) {
        *row = (uint32_t)i / (uint32_t)e.per_row;
        *col = (int64_t)((uint32_t)i % (uint32_t)e.per_row) * WIDTH;
    } else {
        *row = i / e.per_row;
        *col = i % e.per_row * WIDTH;
    }
    return true;
}

template <types K, typename Op> __global__ void __launch_bounds__(THREADS) each_eight(Op op, eights e)
{
    int64_t row, col;
    if (!position_of_piece(e, (int64_t)blockIdx.x * THREADS + threadIdx.x, &row, &col))
        return;
    const int n = e.ncol - col < WIDTH ? (int)(e.ncol - col) : WIDTH;
    op.template at<K>(row, col, n, e.aligned && n == WIDTH);
}

/* Runs op.at<types>(row, col, n, whole) for each group of eight of (nrow, ncol). Op is passed by value. */
template <typename Op>
void for_eights(struct kern_stream *stream, std::initializer_list<operand> all, int64_t nrow, int64_t ncol, Op op)
{
    const eights e = { nrow, ncol, (ncol + WIDTH - 1) / WIDTH, aligned(all) };
    const dim3 grid = blocks_for(nrow * e.per_row, THREADS);
    switch (types_of(all)) {
    case ALL_F32: launch(stream, each_eight<ALL_F32, Op>, grid, THREADS, 0, op, e); break;
    case ALL_BF16: launch(stream, each_eight<ALL_BF16, Op>, grid, THREADS, 0, op, e); break;
    case MIXED: launch(stream, each_eight<MIXED, Op>, grid, THREADS, 0, op, e); break;
    }
}

/* The same for operations that ignore the position: operands without gaps become one long row. */
template <typename Op>
void for_elements(struct kern_stream *stream, std::initializer_list<operand> all, int64_t nrow, int64_t ncol, Op op)
{
    bool gaps = false;
    for (const operand &o : all)
        gaps = gaps || (o.data && o.pitch != ncol);
    if (gaps || nrow == 0)
        for_eights(stream, all, nrow, ncol, op);
    else
        for_eights(stream, all, 1, nrow * ncol, op);
}

#endif
