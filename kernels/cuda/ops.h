/* The CUDA kernels: what ops.c puts into the table. Plain C, so that ops.c and the tests need no CUDA header. */
#ifndef CUDA_OPS_H
#define CUDA_OPS_H

#include <kernels/ops.h>

#ifdef __cplusplus
extern "C" {
#endif

void cuda_gemm(struct kern_stream *stream, const struct kern_gemm *args);
void cuda_rmsnorm(struct kern_stream *stream, const struct kern_rmsnorm *args);
void cuda_rmsnorm_grad(struct kern_stream *stream, const struct kern_rmsnorm_grad *args);
void cuda_rope(struct kern_stream *stream, const struct kern_rope_apply *args);
size_t cuda_attention_table_bytes(const struct kern_stream *stream, const struct kern_attention_shape *args);
void cuda_attention_table(struct kern_stream *stream, struct kern_attention_shape *args);
size_t cuda_attention_scratch(const struct kern_stream *stream, const struct kern_attention_shape *args);
size_t cuda_attention_grad_scratch(const struct kern_stream *stream, const struct kern_attention_shape *args);
void cuda_attention(struct kern_stream *stream, const struct kern_attention *args);
void cuda_attention_grad(struct kern_stream *stream, const struct kern_attention_grad *args);
void cuda_swiglu(struct kern_stream *stream, struct kern_mat y, struct kern_cmat gate, struct kern_cmat up, int64_t nrow, int64_t ncol);
void cuda_swiglu_grad(struct kern_stream *stream, const struct kern_swiglu_grad *args);
void cuda_cast(struct kern_stream *stream, struct kern_mat dst, struct kern_cmat src, int64_t nrow, int64_t ncol);
void cuda_add(struct kern_stream *stream, struct kern_mat dst, struct kern_cmat a, struct kern_cmat b, int64_t nrow, int64_t ncol);
void cuda_scale(struct kern_stream *stream, struct kern_mat dst, struct kern_cmat src, float factor, int64_t nrow, int64_t ncol);
void cuda_sum_rows(struct kern_stream *stream, float *dst, struct kern_cmat x, int64_t nrow, int64_t ncol, float *scratch);
void cuda_sum(struct kern_stream *stream, double *dst, const float *x, int64_t nelem);
void cuda_gather_rows(struct kern_stream *stream, struct kern_mat dst, struct kern_cmat src, const int32_t *index, int64_t nrow, int64_t ncol, int64_t nsrc);
void cuda_scatter_rows(struct kern_stream *stream, struct kern_mat dst, struct kern_cmat src, const int32_t *index, int64_t nrow, int64_t ncol, int64_t ndst);
void cuda_scatter_add(struct kern_stream *stream, struct kern_mat dst, struct kern_cmat src, const int32_t *index, int64_t nrow, int64_t ncol, int64_t ndst);
void cuda_gather_cols(struct kern_stream *stream, struct kern_mat dst, struct kern_cmat src, const int32_t *index, int64_t nrow, int64_t ncol, int64_t nsrc);
void cuda_scatter_add_cols(struct kern_stream *stream, struct kern_mat dst, struct kern_cmat src, const int32_t *index, int64_t nrow, int64_t ncol, int64_t ndst);
void cuda_cross_entropy(struct kern_stream *stream, const struct kern_cross_entropy *args);
void cuda_lora_down(struct kern_stream *stream, const struct kern_lora *args);
void cuda_lora_up_grad(struct kern_stream *stream, const struct kern_lora *args);
void cuda_lora_grad_a(struct kern_stream *stream, const struct kern_lora *args);
void cuda_lora_grad_b(struct kern_stream *stream, const struct kern_lora *args);
void cuda_dora_norm(struct kern_stream *stream, const struct kern_dora_norm *args);
void cuda_dora_scale(struct kern_stream *stream, const struct kern_dora_scale *args);
void cuda_dora_grad(struct kern_stream *stream, const struct kern_dora_grad *args);
void cuda_uniform(struct kern_stream *stream, float *dst, int64_t nelem, struct kern_philox rng, uint64_t index0, float low, float high);
void cuda_dropout(struct kern_stream *stream, struct kern_mat y, struct kern_cmat x, int64_t nrow, int64_t ncol, const struct kern_dropout *args);
void cuda_adamw(struct kern_stream *stream, const struct kern_adamw *args);
void cuda_gemv(struct kern_stream *stream, const struct kern_gemv *args);
void cuda_attention_one(struct kern_stream *stream, const struct kern_attention_one *args);
void cuda_sum_squares(struct kern_stream *stream, double *out, const struct kern_rows *matrices, size_t nmatrices);

extern const struct kern_ops cuda_ops;

#ifdef __cplusplus
}
#endif
#endif
