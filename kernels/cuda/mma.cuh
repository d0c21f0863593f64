/* SPDX-License-Identifier: Apache-2.0 */
/* Warp-wide operations on tensor cores, and asynchronous copies: PTX under nvcc, emulated by the shim on the CPU.
 * Layouts are those of PTX's mma.m16n8k16: with g = lane / 4 and t = lane % 4, the registers of C are (g, 2t), (g,
 * 2t+1), (g+8, 2t), (g+8, 2t+1). */
#ifndef CUDA_MMA_CUH
#define CUDA_MMA_CUH

#include "cuda/vec.cuh"

#ifdef __CUDACC__

__device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Loads four 8 x 8 matrices of 16-bit elements. Lane i passes the address of row i % 8 of matrix i / 8, and receives
 * elements 2t and 2t+1 of row g of each matrix. */
__device__ __forceinline__ void load_matrices(uint32_t r[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

/* The same with the matrices transposed: elements 2t and 2t+1 of column g. */
__device__ __forceinline__ void load_matrices_transposed(uint32_t r[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

/* C (16, 8) += A (16, 16) · B (16, 8), bf16 into fp32. */
__device__ __forceinline__ void multiply_add(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Copies 16 bytes: the first nvalid from src, zeros after them. */
__device__ __forceinline__ void copy_async(void *dst, const void *src, unsigned nvalid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(dst)), "l"(src), "r"(nvalid)
                 : "memory");
}

/* Copies four bytes, or zeros. */
__device__ __forceinline__ void copy_word_async(void *dst, const void *src, bool there)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(dst)), "l"(src), "r"(there ? 4 : 0)
                 : "memory");
}

__device__ __forceinline__ void copy_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most LEFT of this thread's committed groups of copies are in flight. */
template <int LEFT> __device__ __forceinline__ void copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

#else

static inline uint32_t shared_address(const void *p)
{
    return (uint32_t)(static_cast<const char *>(p) - static_cast<const char *>(shim_shared(0)));
}

struct shim_matrices {
    const void *row;
    uint32_t *r;
};

template <bool TRANSPOSED> void shim_load_matrices(void *const lane[32])
{
    for (int i = 0; i < 32; i++)
        for (int m = 0; m < 4; m++) {
            uint16_t pair[2];
            for (int e = 0; e < 2; e++) {
                const int row = TRANSPOSED ? 2 * (i % 4) + e : i / 4, col = TRANSPOSED ? i / 4 : 2 * (i % 4) + e;
                memcpy(&pair[e],
                       static_cast<const uint16_t *>(static_cast<shim_matrices *>(lane[8 * m + row])->row) + col,
                       sizeof(pair[e]));
            }
            static_cast<shim_matrices *>(lane[i])->r[m] = pair[0] | (uint32_t)pair[1] << 16;
        }
}

static inline void load_matrices(uint32_t r[4], const void *row)
{
    shim_matrices mine = { row, r };
    shim_warp(shim_load_matrices<false>, &mine);
}

static inline void load_matrices_transposed(uint32_t r[4], const void *row)
{
    shim_matrices mine = { row, r };
    shim_warp(shim_load_matrices<true>, &mine);
}

struct shim_product {
    float *c;
    const uint32_t *a;
    uint32_t b[2];
};

static inline float shim_half(uint32_t pair, int e)
{
    return widen((uint16_t)(e ? pair >> 16 : pair));
}

static inline void shim_multiply_add(void *const lane[32])
{
    float a[16][16], b[16][8];
    for (int i = 0; i < 32; i++) {
        const shim_product *p = static_cast<const shim_product *>(lane[i]);
        for (int r = 0; r < 4; r++)
            for (int e = 0; e < 2; e++)
                a[i / 4 + r % 2 * 8][i % 4 * 2 + e + r / 2 * 8] = shim_half(p->a[r], e);
        for (int r = 0; r < 2; r++)
            for (int e = 0; e < 2; e++)
                b[i % 4 * 2 + e + r * 8][i / 4] = shim_half(p->b[r], e);
    }
    for (int i = 0; i < 32; i++)
        for (int r = 0; r < 4; r++) {
            float sum = static_cast<const shim_product *>(lane[i])->c[r];
            for (int k = 0; k < 16; k++)
                sum += a[i / 4 + r / 2 * 8][k] * b[k][i % 4 * 2 + r % 2];
            static_cast<const shim_product *>(lane[i])->c[r] = sum;
        }
}

static inline void multiply_add(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    shim_product mine = { c, a, { b0, b1 } };
    shim_warp(shim_multiply_add, &mine);
}

static inline void copy_async(void *dst, const void *src, unsigned nvalid)
{
    shim_copy_async(dst, src, 16, nvalid);
}

static inline void copy_word_async(void *dst, const void *src, bool there)
{
    shim_copy_async(dst, src, 4, there ? 4 : 0);
}

static inline void copy_commit()
{
    shim_copy_commit();
}

template <int LEFT> static inline void copy_wait()
{
    shim_copy_wait(LEFT);
}

#endif
#endif
