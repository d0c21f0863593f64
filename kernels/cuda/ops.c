/* The CUDA row of the kernel table. */
#include "cuda/ops.h"

const struct kern_ops cuda_ops = {
    .rmsnorm = cuda_rmsnorm,
    .rmsnorm_grad = cuda_rmsnorm_grad,
    .rope = cuda_rope,
    .swiglu = cuda_swiglu,
    .swiglu_grad = cuda_swiglu_grad,
    .cast = cuda_cast,
    .add = cuda_add,
    .scale = cuda_scale,
    .sum_rows = cuda_sum_rows,
    .sum = cuda_sum,
    .gather_rows = cuda_gather_rows,
    .scatter_rows = cuda_scatter_rows,
    .scatter_add = cuda_scatter_add,
    .gather_cols = cuda_gather_cols,
    .scatter_add_cols = cuda_scatter_add_cols,
    .cross_entropy = cuda_cross_entropy,
    .uniform = cuda_uniform,
    .dropout = cuda_dropout,
    .adamw = cuda_adamw,
    .sum_squares = cuda_sum_squares,
};
