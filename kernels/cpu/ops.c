/* The CPU's row of the kernel table. */
#include "cpu/ops.h"

#include "cpu/stream.h"

const struct kern_ops cpu_ops = {
    .gemm = cpu_gemm,
    .rmsnorm = cpu_rmsnorm,
    .rmsnorm_grad = cpu_rmsnorm_grad,
    .rope = cpu_rope,
    .attention_scratch = cpu_attention_scratch,
    .attention_grad_scratch = cpu_attention_grad_scratch,
    .attention = cpu_attention,
    .attention_grad = cpu_attention_grad,
    .swiglu = cpu_swiglu,
    .swiglu_grad = cpu_swiglu_grad,
    .cast = cpu_cast,
    .add = cpu_add,
    .scale = cpu_scale,
    .sum_rows = cpu_sum_rows,
    .sum = cpu_sum,
    .gather_rows = cpu_gather_rows,
    .scatter_rows = cpu_scatter_rows,
    .scatter_add = cpu_scatter_add,
    .gather_cols = cpu_gather_cols,
    .scatter_add_cols = cpu_scatter_add_cols,
    .cross_entropy = cpu_cross_entropy,
    .lora_down = cpu_lora_down,
    .lora_up_grad = cpu_lora_up_grad,
    .lora_grad_a = cpu_lora_grad_a,
    .lora_grad_b = cpu_lora_grad_b,
    .uniform = cpu_uniform,
    .dropout = cpu_dropout,
    .gemv = cpu_gemv,
    .attention_one = cpu_attention_one,
    .adamw = cpu_adamw,
    .sum_squares = cpu_sum_squares,
};
