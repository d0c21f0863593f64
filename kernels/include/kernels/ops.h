/* SPDX-License-Identifier: Apache-2.0 */
/* The table of operations that every device provides (kern_device.ops). The table of the CPU is the reference and
 * always complete. Kernels allocate no memory that the caller must know of: the caller provides scratch, and the
 * header of each group of operations says how much. The first call of a shape may create a library primitive, which
 * the stream caches. */
#ifndef KERNELS_OPS_H
#define KERNELS_OPS_H

#include <kernels/attention.h>
#include <kernels/decode.h>
#include <kernels/dequantize.h>
#include <kernels/dora.h>
#include <kernels/elementwise.h>
#include <kernels/gemm.h>
#include <kernels/lora.h>
#include <kernels/loss.h>
#include <kernels/norm.h>
#include <kernels/optimizer.h>
#include <kernels/random.h>
#include <kernels/rope.h>
#include <kernels/stream.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Every operation: its name, and its type kern_TYPE_fn, whose comment describes it. The tables of devices, their
 * declarations and the tables that wrap them are generated from this list. */
/* clang-format off */
#define KERN_OPS(OP) \
    OP(gemm, gemm) \
    OP(rmsnorm, rmsnorm) OP(rmsnorm_grad, rmsnorm_grad) OP(rope, rope) \
    OP(attention_table_bytes, attention_scratch) OP(attention_table, attention_table) \
    OP(attention_scratch, attention_scratch) OP(attention_grad_scratch, attention_scratch) OP(attention, attention) \
    OP(attention_grad, attention_grad) \
    OP(swiglu, swiglu) OP(swiglu_grad, swiglu_grad) \
    OP(cast, cast) OP(add, add) OP(scale, scale) OP(sum_rows, sum_rows) OP(sum, sum) OP(gather_rows, gather_rows) \
    OP(scatter_rows, scatter_rows) OP(scatter_add, scatter_add) OP(gather_cols, gather_cols) \
    OP(scatter_add_cols, scatter_add_cols) \
    OP(cross_entropy, cross_entropy) \
    OP(lora_down, lora) OP(lora_up_grad, lora) OP(lora_grad_a, lora) OP(lora_grad_b, lora) \
    OP(dora_norm, dora_norm) OP(dora_scale, dora_scale) OP(dora_grad, dora_grad) \
    OP(uniform, uniform) OP(dropout, dropout) \
    OP(dequantize, dequantize) \
    OP(gemv, gemv) OP(attention_one, attention_one) \
    OP(adamw, adamw) OP(sum_squares, sum_squares)
/* clang-format on */

struct kern_ops {
#define KERN_MEMBER(name, type) kern_##type##_fn *name;
    KERN_OPS(KERN_MEMBER)
#undef KERN_MEMBER
};

#ifdef __cplusplus
}
#endif
#endif
