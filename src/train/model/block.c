/* One transformer block: attention and SwiGLU, each behind a norm and around a residual. Norms' outputs and SwiGLU's product are computed anew in the backward:
 * they are cheap, and as large as anything that is kept. */
#include "model/compute_impl.h"

static void turn(struct compute *c, void *x, int64_t nhead, bool inverse)
{
    struct kern_rope_apply rope = { .nrow = c->batch.ntok, .nhead = nhead, .dim = c->m->head_dim, .x = mat(c, x, nhead * c->m->head_dim),
                                    .cosines = c->cosines, .sines = c->sines, .positions = c->batch.positions, .inverse = inverse };
    c->device->ops->rope(c->stream, &rope);
}

static struct kern_attention_shape shape_of(const struct compute *c, int64_t number)
{
    const struct model *m = c->m;
    return (struct kern_attention_shape){ .ntok = c->batch.ntok, .nhead = m->nhead, .nkv = m->nkv, .head_dim = m->head_dim, .cu_seqlens = c->batch.cu_seqlens,
                                          .ndoc = c->batch.ndocs, .window = m->window[number], .scale = (float)(1 / __builtin_sqrt((double)m->head_dim)) };
}

static void attention_forward(struct compute *c, int64_t number)
{
    const struct model *m = c->m;
    const struct layer *layer = &c->l->layers[number];
    struct block *b = &c->blocks[number];
    int64_t nq = m->nhead * m->head_dim, nkv = m->nkv * m->head_dim;
    norm_forward(c, layer->norm1, 1, m->hidden, b->x, c->h, b->rstd1);
    linear_forward(c, &layer->q, c->h, b->s_q, NULL, mat(c, b->q_raw, nq));
    linear_forward(c, &layer->k, c->h, b->s_k, NULL, mat(c, b->k_raw, nkv));
    linear_forward(c, &layer->v, c->h, b->s_v, NULL, mat(c, b->v, nkv));
    if (m->qk_norm) {
        norm_forward(c, layer->q_norm, m->nhead, m->head_dim, b->q_raw, b->q, b->rstd_q);
        norm_forward(c, layer->k_norm, m->nkv, m->head_dim, b->k_raw, b->k, b->rstd_k);
    }
    turn(c, b->q, m->nhead, false);
    turn(c, b->k, m->nkv, false);
    struct kern_attention attention = { .shape = shape_of(c, number), .q = cmat(c, b->q, nq), .k = cmat(c, b->k, nkv), .v = cmat(c, b->v, nkv), .o = mat(c, b->o, nq),
                                        .lse = b->lse, .scratch = c->attention };
    c->device->ops->attention(c->stream, &attention);
    linear_forward(c, &layer->o, b->o, b->s_o, b->x, mat(c, b->x2, m->hidden));
}

void block_forward(struct compute *c, int64_t number, void *out)
{
    const struct model *m = c->m;
    const struct layer *layer = &c->l->layers[number];
    struct block *b = &c->blocks[number];
    attention_forward(c, number);
    norm_forward(c, layer->norm2, 1, m->hidden, b->x2, c->h, b->rstd2);
    linear_forward(c, &layer->gate, c->h, b->s_gate, NULL, mat(c, b->gate, m->inner));
    linear_forward(c, &layer->up, c->h, b->s_up, NULL, mat(c, b->up, m->inner));
    c->device->ops->swiglu(c->stream, mat(c, c->act, m->inner), cmat(c, b->gate, m->inner), cmat(c, b->up, m->inner), c->batch.ntok, m->inner);
    linear_forward(c, &layer->down, c->act, b->s_down, b->x2, mat(c, out, m->hidden));
}

/* c->dx: of the block's output, becomes that of x2. */
static void mlp_backward(struct compute *c, int64_t number)
{
    const struct model *m = c->m;
    const struct layer *layer = &c->l->layers[number];
    struct block *b = &c->blocks[number];
    const struct kern_ops *ops = c->device->ops;
    int64_t n = m->inner;
    ops->swiglu(c->stream, mat(c, c->act, n), cmat(c, b->gate, n), cmat(c, b->up, n), c->batch.ntok, n);
    linear_backward(c, &layer->down, c->act, b->s_down, c->dx, NULL, c->dact);
    struct kern_swiglu_grad grad = { .nrow = c->batch.ntok, .ncol = n, .gate = cmat(c, b->gate, n), .up = cmat(c, b->up, n), .dy = cmat(c, c->dact, n),
                                     .dgate = mat(c, b->gate, n), .dup = mat(c, b->up, n) };
    ops->swiglu_grad(c->stream, &grad);
    norm_forward(c, layer->norm2, 1, m->hidden, b->x2, c->h, NULL);
    linear_backward(c, &layer->gate, c->h, b->s_gate, b->gate, NULL, c->dh);
    linear_backward(c, &layer->up, c->h, b->s_up, b->up, c->dh, c->dh);
    norm_backward(c, layer->norm2, 1, m->hidden, b->x2, b->rstd2, c->dh, c->dx, c->dx);
}

/* c->dx: of x2; dq, dk, dv: of what the three products gave. */
static void attention_backward(struct compute *c, int64_t number)
{
    const struct model *m = c->m;
    const struct layer *layer = &c->l->layers[number];
    struct block *b = &c->blocks[number];
    int64_t nq = m->nhead * m->head_dim, nkv = m->nkv * m->head_dim;
    linear_backward(c, &layer->o, b->o, b->s_o, c->dx, NULL, c->d_o);
    struct kern_attention_grad grad = { .shape = shape_of(c, number), .q = cmat(c, b->q, nq), .k = cmat(c, b->k, nkv), .v = cmat(c, b->v, nkv), .o = cmat(c, b->o, nq),
                                        .d_o = cmat(c, c->d_o, nq), .lse = b->lse, .dq = mat(c, c->dq, nq), .dk = mat(c, c->dk, nkv), .dv = mat(c, c->dv, nkv),
                                        .scratch = c->attention };
    c->device->ops->attention_grad(c->stream, &grad);
    turn(c, c->dq, m->nhead, true);
    turn(c, c->dk, m->nkv, true);
    if (m->qk_norm) {
        norm_backward(c, layer->q_norm, m->nhead, m->head_dim, b->q_raw, b->rstd_q, c->dq, NULL, c->dq);
        norm_backward(c, layer->k_norm, m->nkv, m->head_dim, b->k_raw, b->rstd_k, c->dk, NULL, c->dk);
    }
}

void block_backward(struct compute *c, int64_t number, bool wants_dx)
{
    const struct model *m = c->m;
    const struct layer *layer = &c->l->layers[number];
    struct block *b = &c->blocks[number];
    void *dh = wants_dx ? c->dh : NULL;
    mlp_backward(c, number);
    attention_backward(c, number);
    norm_forward(c, layer->norm1, 1, m->hidden, b->x, c->h, NULL);
    linear_backward(c, &layer->q, c->h, b->s_q, c->dq, NULL, dh);
    linear_backward(c, &layer->k, c->h, b->s_k, c->dk, dh, dh);
    linear_backward(c, &layer->v, c->h, b->s_v, c->dv, dh, dh);
    if (wants_dx)
        norm_backward(c, layer->norm1, 1, m->hidden, b->x, b->rstd1, c->dh, c->dx, c->dx);
}
