/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on single elements or rows: casts, sums, SwiGLU, gather and scatter of rows, sums over tokens. */
#ifndef KERNELS_ELEMENTWISE_H
#define KERNELS_ELEMENTWISE_H

#include <kernels/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* dst = src, rounded to nearest even; NaN stays NaN. May be the same memory only if the types are the same. */
typedef void kern_cast_fn(struct kern_stream *, struct kern_mat dst, struct kern_cmat src, int64_t nrow, int64_t ncol);

/* dst = a + b; dst may be a or b. Residual sums, and folds of gradients (left operand first). */
typedef void kern_add_fn(struct kern_stream *, struct kern_mat dst, struct kern_cmat a, struct kern_cmat b,
                         int64_t nrow, int64_t ncol);

/* dst = factor · src; dst may be src. */
typedef void kern_scale_fn(struct kern_stream *, struct kern_mat dst, struct kern_cmat src, float factor, int64_t nrow,
                           int64_t ncol);

/* SwiGLU (Shazeer 2020): y = silu(gate) · up, silu(x) = x·σ(x). All (nrow, ncol). y may be gate or up. */
typedef void kern_swiglu_fn(struct kern_stream *, struct kern_mat y, struct kern_cmat gate, struct kern_cmat up,
                            int64_t nrow, int64_t ncol);

struct kern_swiglu_grad {
    int64_t nrow, ncol;
    struct kern_cmat gate, up, dy;
    struct kern_mat dgate, dup; /* may be any of gate, up, dy, but not each other */
    struct kern_mat
        y; /* recomputes y of SwiGLU from gate and up; may be dy if no other result is; data NULL: not wanted */
};
/* dup = dy·silu(gate); dgate = dy·up·σ(gate)·(1 + gate·(1 - σ(gate))). */
typedef void kern_swiglu_grad_fn(struct kern_stream *, const struct kern_swiglu_grad *);

/* dst[j] += Σ over rows of x[·][j]: the gradient of a bias. scratch: kern_sum_rows_scratch floats. */
typedef void kern_sum_rows_fn(struct kern_stream *, float *dst /* (ncol) */, struct kern_cmat x, int64_t nrow,
                              int64_t ncol, float *scratch);
static inline int64_t kern_sum_rows_scratch(int64_t nrow, int64_t ncol)
{
    return kern_row_blocks(nrow) * ncol;
}

/* *dst = Σ x in fp64, over blocks of KERN_ROW_BLOCK elements whose sums are added in order: the loss of many tokens.
 * The kernels of the stream must be able to write dst. */
typedef void kern_sum_fn(struct kern_stream *, double *dst, const float *x, int64_t nelem);

/* Row i of dst = row index[i] of src. An index outside of the nsrc rows of src is KERN_ERR_ARG. Serves embeddings and
 * the choice of supervised rows. */
typedef void kern_gather_rows_fn(struct kern_stream *, struct kern_mat dst, struct kern_cmat src, const int32_t *index,
                                 int64_t nrow, int64_t ncol, int64_t nsrc);
/* Row index[i] of dst = row i of src. The indices must differ. dst has ndst rows; rows without an index are left
 * alone. */
typedef void kern_scatter_rows_fn(struct kern_stream *, struct kern_mat dst, struct kern_cmat src, const int32_t *index,
                                  int64_t nrow, int64_t ncol, int64_t ndst);
/* Row index[i] of dst += row i of src, for i ascending: the gradient of an embedding. dst is fp32 and has ndst rows. */
typedef void kern_scatter_add_fn(struct kern_stream *, struct kern_mat dst, struct kern_cmat src, const int32_t *index,
                                 int64_t nrow, int64_t ncol, int64_t ndst);
/* The same for a matrix that is stored transposed, as A of a LoRA embedding is (r, vocabulary): dst[i][j] =
 * src[j][index[i]]; and its gradient. */
typedef void kern_gather_cols_fn(struct kern_stream *, struct kern_mat dst, struct kern_cmat src, const int32_t *index,
                                 int64_t nrow, int64_t ncol, int64_t nsrc);
typedef void kern_scatter_add_cols_fn(struct kern_stream *, struct kern_mat dst, struct kern_cmat src,
                                      const int32_t *index, int64_t nrow, int64_t ncol, int64_t ndst);

#ifdef __cplusplus
}
#endif
#endif
