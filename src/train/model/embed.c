/* SPDX-License-Identifier: Apache-2.0 */
/* The embedding: gathers rows of its weight, and of its adapter, by token id. */
#include "model/compute_impl.h"

void embed_forward(struct compute *c, void *x)
{
    const struct linear *e = &c->l->embed;
    const struct kern_ops *ops = c->device->ops;
    int64_t d = e->nout, n = c->batch.ntok;
    ops->gather_rows(c->stream, mat(c, x, d), value_of(c, e->w), c->on.ids, n, d, e->nin);
    if (!e->r)
        return;
    ops->gather_cols(c->stream, mat(c, c->s_embed, e->r), value_of(c, e->a), c->on.ids, n, e->r, e->nin);
    ops->scale(c->stream, mat(c, c->s_embed, e->r), cmat(c, c->s_embed, e->r), e->scale, n, e->r);
    struct kern_gemm gemm = { .m = n,
                              .n = d,
                              .k = e->r,
                              .a = cmat(c, c->s_embed, e->r),
                              .b = value_of(c, e->b),
                              .trans_b = true,
                              .c = mat(c, x, d),
                              .alpha = 1,
                              .add = cmat(c, x, d) };
    ops->gemm(c->stream, &gemm);
}

void embed_backward(struct compute *c, const void *dx)
{
    const struct linear *e = &c->l->embed;
    const struct kern_ops *ops = c->device->ops;
    int64_t d = e->nout, n = c->batch.ntok;
    float *dw = grad_of(c, e->w);
    if (dw)
        ops->scatter_add(c->stream, grad_mat(dw, d), cmat(c, dx, d), c->on.ids, n, d, e->nin);
    if (!e->r)
        return;
    struct kern_lora_segment segment = {
        .nrow = n, .r = e->r, .scale = e->scale, .b = value_of(c, e->b), .db = grad_of(c, e->b), .pitch_db = e->r
    };
    struct kern_lora lora = { .nrow = n,
                              .nin = e->nin,
                              .nout = d,
                              .segments = &segment,
                              .nsegments = 1,
                              .dy = cmat(c, dx, d),
                              .s = mat(c, c->s_embed, e->r),
                              .ds = mat(c, c->ds, e->r) };
    ops->lora_grad_b(c->stream, &lora);
    ops->lora_up_grad(c->stream, &lora);
    ops->scatter_add_cols(c->stream, grad_mat(grad_of(c, e->a), e->nin), cmat(c, c->ds, e->r), c->on.ids, n, e->r,
                          e->nin);
}
