/* SPDX-License-Identifier: Apache-2.0 */
/* Block function of Philox4x32-10, as in the paper. C, C++ without vectors, and GPU kernels share this text. */
#ifndef COMMON_PHILOX_H
#define COMMON_PHILOX_H

#include <stdint.h>

#ifdef __CUDACC__
#define PHILOX_FN static __host__ __device__ __forceinline__
#else
#define PHILOX_FN static inline
#endif

enum { PHILOX_ROUNDS = 10 };

/* c: counter in, four random words out. */
PHILOX_FN void philox_block(uint32_t c[4], uint32_t k0, uint32_t k1)
{
    for (int i = 0; i < PHILOX_ROUNDS; i++) {
        uint64_t a = (uint64_t)c[0] * 0xD2511F53u, b = (uint64_t)c[2] * 0xCD9E8D57u;
        uint32_t c1 = c[1], c3 = c[3];
        c[0] = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c[1] = (uint32_t)b;
        c[2] = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c[3] = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

#endif
