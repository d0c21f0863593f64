/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses among the tables and panel kernels that this processor can run. */
#include "cpu/matmul.h"
#include "cpu/panels.h"
#include "cpu/simd.h"

#if defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

static const struct cpu_simd *const *list(void)
{
#if defined(__x86_64__)
    static const struct cpu_simd *const avx512[] = { &cpu_simd_avx512, &cpu_simd_avx2, &cpu_simd_base, NULL };
    static const struct cpu_simd *const avx2[] = { &cpu_simd_avx2, &cpu_simd_base, NULL };
    const enum cpu_isa isa = cpu_matmul_isa();
    if (isa >= CPU_ISA_AVX512 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return avx512;
    if (isa >= CPU_ISA_AVX2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
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

#if defined(__x86_64__)
/* Linux lets a process use AMX only once it has asked (Documentation/arch/x86/xstate.rst); its threads may then too. */
static bool may_use_amx(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return cpu_matmul_isa() == CPU_ISA_AMX && syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}
#endif

/* bf16 is multiplied as such by AMX and on AMD, because Intel's AVX512-BF16 is slower than its fp32. */
const struct cpu_panels *cpu_panels_best(enum kern_dtype dtype)
{
#if defined(__x86_64__)
    if (cpu_simd_best() != &cpu_simd_avx512)
        return NULL;
    if (dtype == KERN_F32 || !cpu_matmul_bf16())
        return &cpu_panels_f32;
    if (cpu_matmul_isa() == CPU_ISA_AVX512_BF16)
        return &cpu_panels_bf16;
    return may_use_amx() ? &cpu_panels_amx : NULL;
#else
    (void)dtype;
    return NULL;
#endif
}
