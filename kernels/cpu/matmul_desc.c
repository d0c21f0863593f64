/* SPDX-License-Identifier: Apache-2.0 */
/* Describes a product to oneDNN, versions 2 and 3, and asks it for the processor's instruction sets. It must not know
 * of threads, nor of when a product runs. */
#include "cpu/matmul_desc.h"

#include "cpu/simd.h"

#include <kernels/stream.h>
#include <stdio.h>

/* Wrappers for what version 3 renamed. */
#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t layout_t;
static dnnl_status_t layout_make(layout_t *l, int64_t rows, int64_t cols, int64_t row_stride, int64_t col_stride,
                                 dnnl_data_type_t type)
{
    dnnl_dims_t dims = { rows, cols }, strides = { row_stride, col_stride };
    return dnnl_memory_desc_create_with_strides(l, 2, dims, type, strides);
}
static void layout_free(layout_t l)
{
    if (l)
        dnnl_memory_desc_destroy(l);
}
static dnnl_status_t append_sum(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_data_type_undef);
}
static dnnl_status_t product_desc(dnnl_primitive_desc_t *pd, dnnl_engine_t engine, layout_t a, layout_t b, layout_t c,
                                  dnnl_primitive_attr_t attr)
{
    return dnnl_matmul_primitive_desc_create(pd, engine, a, b, NULL, c, attr);
}
#else
typedef dnnl_memory_desc_t layout_t;
static dnnl_status_t layout_make(layout_t *l, int64_t rows, int64_t cols, int64_t row_stride, int64_t col_stride,
                                 dnnl_data_type_t type)
{
    dnnl_dims_t dims = { rows, cols }, strides = { row_stride, col_stride };
    return dnnl_memory_desc_init_by_strides(l, 2, dims, type, strides);
}
static void layout_free(layout_t l)
{
    (void)l; /* a plain struct */
}
static dnnl_status_t append_sum(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0f);
}
static dnnl_status_t product_desc(dnnl_primitive_desc_t *pd, dnnl_engine_t engine, layout_t a, layout_t b, layout_t c,
                                  dnnl_primitive_attr_t attr)
{
    dnnl_matmul_desc_t desc;
    dnnl_status_t status = dnnl_matmul_desc_init(&desc, &a, &b, NULL, &c);
    return status == dnnl_success ? dnnl_primitive_desc_create(pd, &desc, attr, engine, NULL) : status;
}
#endif

static dnnl_data_type_t type_of(enum kern_dtype dtype)
{
    return dtype == KERN_BF16 ? dnnl_bf16 : dnnl_f32;
}

static dnnl_status_t make_attr(const struct cpu_matmul *s, dnnl_primitive_attr_t *attr, dnnl_post_ops_t *ops)
{
    dnnl_status_t status = dnnl_primitive_attr_create(attr);
    if (status == dnnl_success)
        /* the library's own scratchpad serves one thread only */
        status = dnnl_primitive_attr_set_scratchpad_mode(*attr, dnnl_scratchpad_mode_user);
    if (status == dnnl_success && s->accumulate) {
        status = dnnl_post_ops_create(ops);
        if (status == dnnl_success)
            status = append_sum(*ops);
        if (status == dnnl_success)
            status = dnnl_primitive_attr_set_post_ops(*attr, *ops);
    }
    return status;
}

dnnl_status_t cpu_matmul_desc(dnnl_engine_t engine, const struct cpu_matmul *s, dnnl_primitive_desc_t *pd)
{
    layout_t a = { 0 }, b = { 0 }, c = { 0 };
    dnnl_primitive_attr_t attr = NULL;
    dnnl_post_ops_t ops = NULL;
    dnnl_status_t status = make_attr(s, &attr, &ops);
    if (status == dnnl_success)
        status = layout_make(&a, s->m, s->k, s->trans_a ? 1 : s->lda, s->trans_a ? s->lda : 1, type_of(s->in));
    if (status == dnnl_success)
        status = layout_make(&b, s->k, s->n, s->trans_b ? 1 : s->ldb, s->trans_b ? s->ldb : 1, type_of(s->in));
    if (status == dnnl_success)
        status = layout_make(&c, s->m, s->n, s->ldc, 1, type_of(s->out));
    if (status == dnnl_success)
        status = product_desc(pd, engine, a, b, c, attr);
    layout_free(a);
    layout_free(b);
    layout_free(c);
    if (ops)
        dnnl_post_ops_destroy(ops);
    if (attr)
        dnnl_primitive_attr_destroy(attr);
    return status;
}

static bool has(dnnl_cpu_isa_t isa)
{
    return (dnnl_get_effective_cpu_isa() & isa) == isa;
}

enum cpu_isa cpu_matmul_isa(void)
{
    return has(dnnl_cpu_isa_avx512_core_amx)    ? CPU_ISA_AMX
           : has(dnnl_cpu_isa_avx512_core_bf16) ? CPU_ISA_AVX512_BF16
           : has(dnnl_cpu_isa_avx512_core)      ? CPU_ISA_AVX512
           : has(dnnl_cpu_isa_avx2)             ? CPU_ISA_AVX2
                                                : CPU_ISA_BASE;
}

/* Returns true only where bf16 is faster than fp32 (measured): with AMX, and with AMD's AVX512-BF16, which is twice as
 * fast. Intel's AVX512-BF16 on Sapphire Rapids is slower than its fp32. */
bool cpu_matmul_bf16(void)
{
    const enum cpu_isa isa = cpu_matmul_isa();
#if defined(__x86_64__)
    return isa == CPU_ISA_AMX || (isa == CPU_ISA_AVX512_BF16 && __builtin_cpu_is("amd"));
#else
    return isa >= CPU_ISA_AVX512_BF16;
#endif
}

void kern_cpu_describe(char *text)
{
    const dnnl_version_t *v = dnnl_version();
    snprintf(text, KERN_MESSAGE_BYTES, "%s, oneDNN %d.%d.%d, bf16 products %s", cpu_simd_best()->name, v->major,
             v->minor, v->patch, cpu_matmul_bf16() ? "as such" : "widened to fp32");
}
