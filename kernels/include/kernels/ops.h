/* The kernel table: one row a kind of device (kern_device.ops). The CPU's is the reference and always complete. A kernel allocates nothing that its caller
 * would have to know of; scratch is the caller's and the family's header says how much. The first call of a shape may prepare a library's primitive, which
 * the stream keeps. */
#ifndef KERNELS_OPS_H
#define KERNELS_OPS_H

#include <kernels/attention.h>
#include <kernels/decode.h>
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

struct kern_ops {
    kern_gemm_fn gemm;

    kern_rmsnorm_fn rmsnorm;
    kern_rmsnorm_grad_fn rmsnorm_grad;
    kern_rope_fn rope;

    kern_attention_scratch_fn attention_table_bytes;
    kern_attention_table_fn attention_table;
    kern_attention_scratch_fn attention_scratch;
    kern_attention_scratch_fn attention_grad_scratch;
    kern_attention_fn attention;
    kern_attention_grad_fn attention_grad;

    kern_swiglu_fn swiglu;
    kern_swiglu_grad_fn swiglu_grad;

    kern_cast_fn cast;
    kern_add_fn add;
    kern_scale_fn scale;
    kern_sum_rows_fn sum_rows;
    kern_sum_fn sum;
    kern_gather_rows_fn gather_rows;
    kern_scatter_rows_fn scatter_rows;
    kern_scatter_add_fn scatter_add;
    kern_gather_cols_fn gather_cols;
    kern_scatter_add_cols_fn scatter_add_cols;

    kern_cross_entropy_fn cross_entropy;

    kern_lora_fn lora_down;
    kern_lora_fn lora_up_grad;
    kern_lora_fn lora_grad_a;
    kern_lora_fn lora_grad_b;

    kern_dora_norm_fn dora_norm;
    kern_dora_scale_fn dora_scale;
    kern_dora_grad_fn dora_grad;

    kern_uniform_fn uniform;
    kern_dropout_fn dropout;

    kern_gemv_fn gemv;
    kern_attention_one_fn attention_one;

    kern_adamw_fn adamw;
    kern_sum_squares_fn sum_squares;
};

#ifdef __cplusplus
}
#endif
#endif
