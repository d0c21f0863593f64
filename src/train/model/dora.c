/* SPDX-License-Identifier: Apache-2.0 */
/* DoRA's part of linear layers, forward and backward: the norms of the rows of W + scale·B·A, the scaling of outputs
 * and gradients, and the gradient of the magnitude (formulas: kernels/dora.h). */
#include "model/compute_impl.h"

void dora_norms(struct compute *c, const struct linear *lin)
{
    const struct kern_dora_norm norms = { .nrow = lin->nout,
                                          .ncol = lin->nin,
                                          .r = lin->r,
                                          .scale = lin->scale,
                                          .w = weight_of(c, lin, 0),
                                          .a = value_of(c, lin->a),
                                          .b = value_of(c, lin->b),
                                          .norm = c->norms + lin->norms_at };
    c->device->ops->dora_norm(c->stream, &norms);
}

void dora_scale(struct compute *c, const struct linear *lin, float minus, struct kern_cmat u, struct kern_cmat bias,
                struct kern_cmat add, struct kern_mat y)
{
    const struct kern_dora_scale scale = { .nrow = c->batch.ntok,
                                           .ncol = lin->nout,
                                           .m = value_of(c, lin->magnitude).data,
                                           .norm = c->norms + lin->norms_at,
                                           .minus = minus,
                                           .u = u,
                                           .bias = bias,
                                           .add = add,
                                           .y = y };
    c->device->ops->dora_scale(c->stream, &scale);
}

/* Computes u = drop(x)·Wᵀ + S·Bᵀ of a layer into c->u. */
static struct kern_cmat dora_product(struct compute *c, const struct bundle *b, int i, const void *x, void *s)
{
    const struct linear *lin = b->layers[i];
    const struct kern_dropout dropout = linear_dropout(c, lin);
    const struct kern_lowrank low = { .nrow = c->batch.ntok,
                                      .r = lin->r,
                                      .s = kern_const(bundle_columns(c, b, i, s)),
                                      .b = value_of(c, lin->b),
                                      .trans_b = true,
                                      .alpha = 1 };
    if (dropout.p > 0)
        c->device->ops->dropout(c->stream, mat(c, c->dropped, lin->nin), cmat(c, x, lin->nin), c->batch.ntok, lin->nin,
                                &dropout);
    const struct kern_gemm gemm = { .m = c->batch.ntok,
                                    .n = lin->nout,
                                    .k = lin->nin,
                                    .a = cmat(c, dropout.p > 0 ? c->dropped : x, lin->nin),
                                    .b = weight_of(c, lin, 0),
                                    .trans_b = true,
                                    .c = mat(c, c->u, lin->nout),
                                    .alpha = 1,
                                    .lowrank = &low,
                                    .nlowrank = 1 };
    c->device->ops->gemm(c->stream, &gemm);
    return cmat(c, c->u, lin->nout);
}

void dora_forward(struct compute *c, const struct bundle *b, int i, const void *x, void *s, const void *add,
                  struct kern_mat y)
{
    const struct linear *lin = b->layers[i];
    dora_norms(c, lin);
    const struct kern_cmat u = dora_product(c, b, i, x, s);
    if (c->dropout > 0)
        dora_scale(c, lin, 1, u, no_cmat, kern_const(y), y);
    else
        dora_scale(c, lin, 0, u, value_of(c, lin->bias), add ? cmat(c, add, lin->nout) : no_cmat, y);
}

void dora_scale_grads(struct compute *c, const struct bundle *b, float minus, const struct kern_cmat *dy,
                      struct kern_cmat *out)
{
    int64_t at = 0;
    for (int i = 0; i < b->n; i++) {
        const struct linear *lin = b->layers[i];
        const struct kern_mat scaled =
            mat(c, (char *)c->dy + at * c->batch.ntok * kern_dtype_bytes(c->dtype), lin->nout);
        out[i] = dy[i];
        at += lin->nout;
        if (lin->magnitude < 0)
            continue;
        dora_scale(c, lin, minus, dy[i], no_cmat, no_cmat, scaled);
        out[i] = kern_const(scaled);
    }
}

void dora_magnitude_backward(struct compute *c, const struct bundle *b, int i, const void *x, void *s,
                             struct kern_cmat dy)
{
    const struct linear *lin = b->layers[i];
    const struct kern_dora_grad grad = { .nrow = c->batch.ntok,
                                         .ncol = lin->nout,
                                         .dy = dy,
                                         .u = dora_product(c, b, i, x, s),
                                         .norm = c->norms + lin->norms_at,
                                         .dm = grad_of(c, lin->magnitude),
                                         .scratch = c->sums };
    c->device->ops->dora_grad(c->stream, &grad);
}
