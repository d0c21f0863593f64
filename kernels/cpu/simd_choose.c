/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses among the tables and panel kernels that this processor can run. */
#include "cpu/panels.h"
#include "cpu/simd.h"

static const struct cpu_simd *const *list(void)
{
#if defined(__x86_64__)
    static const struct cpu_simd *const avx512[] = { &cpu_simd_avx512, &cpu_simd_avx2, &cpu_simd_base, NULL };
    static const struct cpu_simd *const avx2[] = { &cpu_simd_avx2, &cpu_simd_base, NULL };
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return avx2;
#endif
    static const struct cpu_simd *const base[] = { &cpu_simd_base, NULL };
    return base;
}

const struct cpu_simd *const *cpu_simd_all(void)
{
    return list();
}

const struct cpu_simd *cpu_simd_best(void)
{
    return list()[0];
}

/* bf16 panels only on AMD: Intel's AVX512-BF16 is slower than its fp32, and oneDNN uses AMX where it exists. */
const struct cpu_panels *cpu_panels_best(enum kern_dtype dtype)
{
#if defined(__x86_64__)
    if (cpu_simd_best() != &cpu_simd_avx512)
        return NULL;
    if (dtype == KERN_F32)
        return &cpu_panels_f32;
    return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_is("amd") ? &cpu_panels_bf16 : NULL;
#else
    (void)dtype;
    return NULL;
#endif
}
