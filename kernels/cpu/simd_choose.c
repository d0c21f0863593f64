/* Which of the tables this processor can run. */
#include "cpu/simd.h"

static const struct cpu_simd *const *list(void)
{
#if defined(__x86_64__)
    static const struct cpu_simd *const avx512[] = {&cpu_simd_avx512, &cpu_simd_avx2, &cpu_simd_base, NULL};
    static const struct cpu_simd *const avx2[] = {&cpu_simd_avx2, &cpu_simd_base, NULL};
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return avx2;
#endif
    static const struct cpu_simd *const base[] = {&cpu_simd_base, NULL};
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
