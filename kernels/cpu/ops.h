/* The CPU's kernels: what ops.c puts into the table. */
#ifndef CPU_OPS_H
#define CPU_OPS_H

#include <kernels/ops.h>

void cpu_gemm(struct kern_stream *stream, const struct kern_gemm *args);
void cpu_rmsnorm(struct kern_stream *stream, const struct kern_rmsnorm *args);
void cpu_rmsnorm_grad(struct kern_stream *stream, const struct kern_rmsnorm_grad *args);
void cpu_rope(struct kern_stream *stream, const struct kern_rope_apply *args);
size_t cpu_attention_table_bytes(const struct kern_stream *stream, const struct kern_attention_shape *args);
void cpu_attention_table(struct kern_stream *stream, struct kern_attention_shape *args);
size_t cpu_attention_scratch(const struct kern_stream *stream, const struct kern_attention_shape *args);
size_t cpu_attention_grad_scratch(const struct kern_stream *stream, const struct kern_attention_shape *args);
void cpu_attention(struct kern_stream *stream, const struct kern_attention *args);
void cpu_attention_grad(struct kern_stream *stream, const struct kern_attention_grad *args);
void cpu_swiglu(struct kern_stream *stream, struct kern_mat y, struct kern_cmat gate, struct kern_cmat up, int64_t nrow, int64_t ncol);
void cpu_swiglu_grad(struct kern_stream *stream, const struct kern_swiglu_grad *args);
void cpu_cast(struct kern_stream *stream, struct kern_mat dst, struct kern_cmat src, int64_t nrow, int64_t ncol);
void cpu_add(struct kern_stream *stream, struct kern_mat dst, struct kern_cmat a, struct kern_cmat b, int64_t nrow, int64_t ncol);
void cpu_scale(struct kern_stream *stream, struct kern_mat dst, struct kern_cmat src, float factor, int64_t nrow, int64_t ncol);
void cpu_sum_rows(struct kern_stream *stream, float *dst, struct kern_cmat x, int64_t nrow, int64_t ncol, float *scratch);
void cpu_sum(struct kern_stream *stream, double *dst, const float *x, int64_t nelem);
void cpu_gather_rows(struct kern_stream *stream, struct kern_mat dst, struct kern_cmat src, const int32_t *index, int64_t nrow, int64_t ncol, int64_t nsrc);
void cpu_scatter_rows(struct kern_stream *stream, struct kern_mat dst, struct kern_cmat src, const int32_t *index, int64_t nrow, int64_t ncol, int64_t ndst);
void cpu_scatter_add(struct kern_stream *stream, struct kern_mat dst, struct kern_cmat src, const int32_t *index, int64_t nrow, int64_t ncol, int64_t ndst);
void cpu_gather_cols(struct kern_stream *stream, struct kern_mat dst, struct kern_cmat src, const int32_t *index, int64_t nrow, int64_t ncol, int64_t nsrc);
void cpu_scatter_add_cols(struct kern_stream *stream, struct kern_mat dst, struct kern_cmat src, const int32_t *index, int64_t nrow, int64_t ncol, int64_t ndst);
void cpu_cross_entropy(struct kern_stream *stream, const struct kern_cross_entropy *args);
void cpu_lora_down(struct kern_stream *stream, const struct kern_lora *args);
void cpu_lora_up_grad(struct kern_stream *stream, const struct kern_lora *args);
void cpu_lora_grad_a(struct kern_stream *stream, const struct kern_lora *args);
void cpu_lora_grad_b(struct kern_stream *stream, const struct kern_lora *args);
void cpu_dora_norm(struct kern_stream *stream, const struct kern_dora_norm *args);
void cpu_dora_scale(struct kern_stream *stream, const struct kern_dora_scale *args);
void cpu_dora_grad(struct kern_stream *stream, const struct kern_dora_grad *args);
void cpu_uniform(struct kern_stream *stream, float *dst, int64_t nelem, struct kern_philox rng, uint64_t index0, float low, float high);
void cpu_dropout(struct kern_stream *stream, struct kern_mat y, struct kern_cmat x, int64_t nrow, int64_t ncol, const struct kern_dropout *args);
void cpu_gemv(struct kern_stream *stream, const struct kern_gemv *args);
void cpu_attention_one(struct kern_stream *stream, const struct kern_attention_one *args);
void cpu_adamw(struct kern_stream *stream, const struct kern_adamw *args);
void cpu_sum_squares(struct kern_stream *stream, double *out, const struct kern_rows *matrices, size_t nmatrices);

#endif
