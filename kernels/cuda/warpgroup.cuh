/* SPDX-License-Identifier: Apache-2.0 */
/* Products by a warpgroup (four warps, starting at a multiple of four) on Hopper's tensor cores, with operands in
 * shared memory: PTX's wgmma under nvcc for sm_90a, emulated by the shim on the CPU. Products are asynchronous: from
 * group_begin to the group_wait that covers them, no thread may touch the accumulators, the registers of A or the
 * operands in memory. A warp has 16 of the 64 rows, laid out as for mma.m16n8k16 (mma.cuh), one group of eight columns
 * after the other.
 *
 * Matrices in shared memory are slabs of 64 features: rows of 128 bytes, starting at a multiple of 1024, in which
 * 16-byte chunk c of row r lies at c ^ (r % 8); or half slabs of 32 features: rows of 64 bytes, chunk c at c ^ (r / 2 %
 * 4). PTX ISA 8.0, "Asynchronous warpgroup level matrix instructions": swizzling by 128 and by 64 bytes. */
#ifndef CUDA_WARPGROUP_CUH
#define CUDA_WARPGROUP_CUH

#include "cuda/mma.cuh"

enum { WARPGROUP = 128, GROUP_ROWS = 64, SLAB = 64, HALF_SLAB = SLAB / 2 };

/* Descriptor of a matrix whose first element is at p, in a slab or half slab: the address and the stride of eight rows,
 * in units of 16 bytes, and the swizzling mode. The leading stride is unused, because a product reads no more than the
 * width of a slab. */
template <int WIDTH> __device__ __forceinline__ uint64_t group_matrix(const void *p)
{
    static_assert(WIDTH == SLAB || WIDTH == HALF_SLAB);
    return (uint64_t)(shared_address(p) >> 4) | (uint64_t)WIDTH << 32 | (uint64_t)(WIDTH == SLAB ? 1 : 2) << 62;
}

#if defined(__CUDACC__) && (!defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL))

/* Makes this thread's writes to shared memory visible to products that start after the next barrier. */
__device__ __forceinline__ void group_publish()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Stops the compiler from moving accesses to these registers across products in flight. */
template <int N> __device__ __forceinline__ void group_pin(float (*c)[4])
{
#pragma unroll
    for (int i = 0; i < N / 8; i++)
        asm volatile("" : "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])::"memory");
}

template <int N> __device__ __forceinline__ void group_begin(float (*c)[4])
{
    group_pin<N>(c);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void group_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits for all but the last LEFT committed groups. Call group_pin on the results next. */
template <int LEFT> __device__ __forceinline__ void group_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

#define FOUR(c)    "+f"((c)[0]), "+f"((c)[1]), "+f"((c)[2]), "+f"((c)[3])
#define SIXTEEN(c) FOUR((c)[0]), FOUR((c)[1]), FOUR((c)[2]), FOUR((c)[3])

/* C (64, 64) = A (64, 16) · B, or += if `add`. A and B lie in shared memory, B as (64, 16). */
__device__ __forceinline__ void group_multiply(float (*c)[4], uint64_t a, uint64_t b, bool add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "%32, %33, p, 1, 1, 0, 0;\n}"
                 : SIXTEEN(c), SIXTEEN(c + 4)
                 : "l"(a), "l"(b), "r"((int)add)
                 : "memory");
}

/* C (64, N) = A (64, 16) · B, or += if `add`. A lies in registers, as for mma.m16n8k16; B in shared memory, as (N, 16),
 * or as (16, N) if ACROSS. */
template <int N, bool TRANSPOSED>
__device__ __forceinline__ void group_multiply(float (*c)[4], const uint32_t a[4], uint64_t b, bool add)
{
    static_assert(N == SLAB || N == HALF_SLAB);
    if constexpr (N == SLAB)
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %38, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                     "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                     "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                     "{%32, %33, %34, %35}, %36, p, 1, 1, %37;\n}"
                     : SIXTEEN(c), SIXTEEN(c + 4)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(TRANSPOSED), "r"((int)add)
                     : "memory");
    else
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %22, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
                     "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
                     "{%16, %17, %18, %19}, %20, p, 1, 1, %21;\n}"
                     : SIXTEEN(c)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(TRANSPOSED), "r"((int)add)
                     : "memory");
}

#undef SIXTEEN
#undef FOUR

#elif defined(__CUDACC__)

/* Stubs for other devices, where no kernel calls them. */
__device__ __forceinline__ void group_publish()
{
}
template <int N> __device__ __forceinline__ void group_pin(float (*)[4])
{
}
template <int N> __device__ __forceinline__ void group_begin(float (*)[4])
{
    __trap();
}
__device__ __forceinline__ void group_commit()
{
}
template <int LEFT> __device__ __forceinline__ void group_wait()
{
}
__device__ __forceinline__ void group_multiply(float (*)[4], uint64_t, uint64_t, bool)
{
}
template <int N, bool TRANSPOSED>
__device__ __forceinline__ void group_multiply(float (*)[4], const uint32_t *, uint64_t, bool)
{
}

#else

static inline void group_publish()
{
    shim_publish();
}

template <int N> void group_pin(float (*)[4])
{
}
template <int N> void group_begin(float (*)[4])
{
}

static inline void group_commit()
{
    shim_group_commit();
}

template <int LEFT> void group_wait()
{
    shim_group_wait(LEFT);
}

/* One thread's operands of a product: A is in registers or a descriptor. */
struct shim_group_product {
    float (*c)[4];
    bool add, in_registers;
    uint32_t a[4];
    uint64_t a_matrix, b_matrix;
};

/* Element (row, feature) of a matrix in shared memory, or (feature, row) if ACROSS: then the rows of a feature are
 * contiguous. */
template <bool TRANSPOSED> float shim_group_element(uint64_t matrix, int row, int feature)
{
    const uint64_t start = (matrix & 0x3fff) << 4, stride = (matrix >> 32 & 0x3fff) << 4, kind = matrix >> 62,
                   row_nbytes = kind == 1 ? 128 : 64;
    const uint64_t along = 2 * (uint64_t)(TRANSPOSED ? row : feature), down = (uint64_t)(TRANSPOSED ? feature : row);
    if ((kind != 1 && kind != 2) || (matrix & 0x3fffc000ffffc000) != 0 || start % row_nbytes + along >= row_nbytes)
        shim_bug("a descriptor that the kernels do not use");
    uint64_t at = start + down / 8 * stride + down % 8 * row_nbytes + along;
    at ^= (at >> 7 & (row_nbytes / 16 - 1)) << 4;
    uint16_t bits;
    memcpy(&bits, static_cast<const char *>(shim_shared(at + sizeof(bits))) + at, sizeof(bits));
    return widen(bits);
}

template <int N, bool TRANSPOSED> void shim_group_multiply(void *const lane[WARPGROUP])
{
    const shim_group_product *first = static_cast<const shim_group_product *>(lane[0]);
    float a[GROUP_ROWS][16], b[16][N];
    for (int i = 0; i < WARPGROUP; i++)
        for (int r = 0; r < 4; r++)
            for (int e = 0; e < 2; e++) {
                const int row = i / 32 * 16 + i % 32 / 4 + r % 2 * 8, col = i % 4 * 2 + e + r / 2 * 8;
                const shim_group_product *p = static_cast<const shim_group_product *>(lane[i]);
                a[row][col] =
                    p->in_registers ? shim_half(p->a[r], e) : shim_group_element<false>(p->a_matrix, row, col);
            }
    for (int k = 0; k < 16; k++)
        for (int n = 0; n < N; n++)
            b[k][n] = shim_group_element<TRANSPOSED>(first->b_matrix, n, k);
    for (int i = 0; i < WARPGROUP; i++)
        for (int n = 0; n < N / 8; n++)
            for (int e = 0; e < 4; e++) {
                const int row = i / 32 * 16 + i % 32 / 4 + e / 2 * 8, col = n * 8 + i % 4 * 2 + e % 2;
                float sum = first->add ? static_cast<const shim_group_product *>(lane[i])->c[n][e] : 0;
                for (int k = 0; k < 16; k++)
                    sum += a[row][k] * b[k][col];
                static_cast<const shim_group_product *>(lane[i])->c[n][e] = sum;
            }
}

static inline void group_multiply(float (*c)[4], uint64_t a, uint64_t b, bool add)
{
    const shim_group_product mine = { c, add, false, {}, a, b };
    shim_group(shim_group_multiply<64, false>, &mine, sizeof(mine));
}

template <int N, bool TRANSPOSED> void group_multiply(float (*c)[4], const uint32_t a[4], uint64_t b, bool add)
{
    const shim_group_product mine = { c, add, true, { a[0], a[1], a[2], a[3] }, 0, b };
    shim_group(shim_group_multiply<N, TRANSPOSED>, &mine, sizeof(mine));
}

#endif
#endif
