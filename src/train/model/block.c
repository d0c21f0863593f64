/* SPDX-License-Identifier: Apache-2.0 */
/* One transformer block: attention and SwiGLU, each with a norm before it and a residual around it. The backward
 * pass recomputes the outputs of the norms and the product of SwiGLU: they are cheap, and as large as any stored
 * activation. */
#include "model/compute_impl.h"
#include "model/expert_exchange.h"

static struct bundle qkv_of(const struct compute *c, const struct layer *l)
{
    return bundle_of(c, (const struct linear *[]){ &l->q, &l->k, &l->v }, 3);
}

static struct bundle gate_up_of(const struct compute *c, const struct layer *l)
{
    return bundle_of(c, (const struct linear *[]){ &l->mlp.gate, &l->mlp.up }, 2);
}

static struct bundle alone(const struct compute *c, const struct linear *lin)
{
    return bundle_of(c, &lin, 1);
}

static void turn(struct compute *c, void *x, int64_t nhead, bool inverse)
{
    struct kern_rope_apply rope = { .nrow = c->batch.ntok,
                                    .nhead = nhead,
                                    .dim = c->m->head_dim,
                                    .rotary = c->m->rope.dim,
                                    .x = mat(c, x, nhead * c->m->head_dim),
                                    .cosines = c->cosines,
                                    .sines = c->sines,
                                    .positions = c->on.positions,
                                    .inverse = inverse };
    c->device->ops->rope(c->stream, &rope);
}

static struct kern_attention_shape shape_of(const struct compute *c, int64_t number)
{
    const struct model *m = c->m;
    return (struct kern_attention_shape){ .ntok = c->batch.ntok,
                                          .nhead = m->nhead,
                                          .nkv = m->nkv,
                                          .head_dim = m->head_dim,
                                          .cu_seqlens = c->batch.cu_seqlens,
                                          .ndoc = c->batch.ndocs,
                                          .window = m->window[number],
                                          .scale = (float)(1 / __builtin_sqrt((double)m->head_dim)),
                                          .table = c->batch.documents,
                                          .sinks = value_of(c, c->l->layers[number].sinks),
                                          .nkeys = c->batch.nkeys };
}

/* Up to the output of attention. */
static void attention_forward(struct compute *c, int64_t number)
{
    const struct model *m = c->m;
    const struct layer *layer = &c->l->layers[number];
    struct block *b = &c->blocks[number];
    struct bundle qkv = qkv_of(c, layer);
    int64_t nq = m->nhead * m->head_dim, nkv = m->nkv * m->head_dim;
    const struct kern_mat y[BUNDLE] = { mat(c, b->q_raw, nq), mat(c, b->k_raw, nkv), mat(c, b->v, nkv) };
    norm_forward(c, layer->norm1, 1, m->hidden, b->x, c->h, b->rstd1);
    bundle_forward(c, &qkv, c->h, b->s_qkv, NULL, y);
    if (m->qk_norm) {
        norm_forward(c, layer->q_norm, m->nhead, m->head_dim, b->q_raw, b->q, b->rstd_q);
        norm_forward(c, layer->k_norm, m->nkv, m->head_dim, b->k_raw, b->k, b->rstd_k);
    }
    turn(c, b->q, m->nhead, false);
    turn(c, b->k, m->nkv, false);
    struct kern_attention attention = { .shape = shape_of(c, number),
                                        .q = cmat(c, b->q, nq),
                                        .k = cmat(c, b->k, nkv),
                                        .v = cmat(c, b->v, nkv),
                                        .o = mat(c, b->o, nq),
                                        .lse = b->lse,
                                        .scratch = c->attention };
    c->device->ops->attention(c->stream, &attention);
}

static void o_forward(struct compute *c, int64_t number)
{
    const struct bundle o = alone(c, &c->l->layers[number].o);
    struct block *b = &c->blocks[number];
    const struct kern_mat x2 = mat(c, b->x2, c->m->hidden);
    bundle_forward(c, &o, b->o, b->s_o, b->x, &x2);
}

static void norm2_forward(struct compute *c, int64_t number)
{
    struct block *b = &c->blocks[number];
    norm_forward(c, c->l->layers[number].norm2, 1, c->m->hidden, b->x2, c->h, b->rstd2);
}

static void gate_up_forward(struct compute *c, int64_t number)
{
    const struct bundle gate_up = gate_up_of(c, &c->l->layers[number]);
    struct block *b = &c->blocks[number];
    const struct kern_mat y[BUNDLE] = { mat(c, b->gate, c->m->inner), mat(c, b->up, c->m->inner) };
    norm2_forward(c, number);
    bundle_forward(c, &gate_up, c->h, b->s_gate_up, NULL, y);
}

static void down_forward(struct compute *c, int64_t number, void *out)
{
    const struct model *m = c->m;
    const struct layer *layer = &c->l->layers[number];
    struct block *b = &c->blocks[number];
    const struct bundle down = alone(c, &layer->mlp.down);
    const struct kern_mat y[BUNDLE] = { mat(c, b->gate, m->inner), mat(c, b->up, m->inner) },
                          to = mat(c, out, m->hidden);
    if (out || layer->mlp.down.r)
        c->device->ops->swiglu(c->stream, mat(c, c->act, m->inner), kern_const(y[0]), kern_const(y[1]), c->batch.ntok,
                               m->inner);
    if (out)
        bundle_forward(c, &down, c->act, b->s_down, b->x2, &to);
    else
        bundle_down(c, &down, c->act, b->s_down);
}

void block_forward(struct compute *c, int64_t number, void *out)
{
    const bool sparse = c->l->blocks[number].sparse;
    if (has_part(c, number, PART_QKV))
        attention_forward(c, number);
    if (has_part(c, number, PART_O))
        o_forward(c, number);
    if (has_part(c, number, PART_GATE_UP) && sparse) {
        norm2_forward(c, number);
        experts_forward(c, number, out);
        return;
    }
    if (has_part(c, number, PART_GATE_UP))
        gate_up_forward(c, number);
    if (has_part(c, number, PART_DOWN) && !sparse)
        down_forward(c, number, out);
}

/* How far the gradient must propagate in this block; each value includes the ones before it. */
enum depth { TO_DOWN, TO_GATE_UP, TO_OUT, TO_QKV, TO_INPUT };

static enum depth depth_of(const struct compute *c, const struct layer *l, bool wants_dx)
{
    if (wants_dx || grad_of(c, l->norm1))
        return TO_INPUT;
    if (linear_trains(c, &l->q) || linear_trains(c, &l->k) || linear_trains(c, &l->v) || grad_of(c, l->q_norm) ||
        grad_of(c, l->k_norm))
        return TO_QKV;
    if (linear_trains(c, &l->o))
        return TO_OUT;
    if (l->experts)
        return experts_train(c, l) || grad_of(c, l->norm2) ? TO_GATE_UP : TO_DOWN;
    return linear_trains(c, &l->mlp.gate) || linear_trains(c, &l->mlp.up) || grad_of(c, l->norm2) ? TO_GATE_UP
                                                                                                  : TO_DOWN;
}

/* c->dx: gradient of the block's output. Replaces gate and up by their gradients if `depth` asks for them. */
static void down_backward(struct compute *c, int64_t number, enum depth depth)
{
    const struct model *m = c->m;
    const struct layer *layer = &c->l->layers[number];
    struct block *b = &c->blocks[number];
    struct bundle down = alone(c, &layer->mlp.down);
    const struct kern_mat gate = mat(c, b->gate, m->inner), up = mat(c, b->up, m->inner),
                          act = mat(c, c->act, m->inner);
    const struct kern_cmat dx = cmat(c, c->dx, m->hidden), dy[BUNDLE] = { kern_const(gate), kern_const(up) };
    const bool anew = linear_trains(c, &layer->mlp.down);
    bundle_backward(c, &down, b->s_down, &dx, NULL, depth > TO_DOWN ? c->act : NULL);
    if (depth >
        TO_DOWN) { /* swiglu_grad replaces gate and up by their gradients, and c->act by the product if down trains */
        struct kern_swiglu_grad grad = { .nrow = c->batch.ntok,
                                         .ncol = m->inner,
                                         .gate = dy[0],
                                         .up = dy[1],
                                         .dy = kern_const(act),
                                         .dgate = gate,
                                         .dup = up,
                                         .y = anew ? act : (struct kern_mat){ 0 } };
        c->device->ops->swiglu_grad(c->stream, &grad);
    } else {
        c->device->ops->swiglu(c->stream, act, dy[0], dy[1], c->batch.ntok, m->inner);
    }
    bundle_backward_rest(c, &down, c->act, b->s_down, &dx);
}

/* c->dx: in, gradient of the block's output; out, gradient of x2 if `depth` asks for it. */
static void gate_up_backward(struct compute *c, int64_t number, enum depth depth)
{
    const struct model *m = c->m;
    const struct layer *layer = &c->l->layers[number];
    struct block *b = &c->blocks[number];
    struct bundle gate_up = gate_up_of(c, layer);
    const struct kern_cmat dy[BUNDLE] = { cmat(c, b->gate, m->inner), cmat(c, b->up, m->inner) };
    const bool through = depth >= TO_OUT || grad_of(c, layer->norm2);
    bundle_backward(c, &gate_up, b->s_gate_up, dy, NULL, through ? c->dh : NULL);
    if (linear_trains(c, &layer->mlp.gate) || linear_trains(c, &layer->mlp.up))
        norm_forward(c, layer->norm2, 1, m->hidden, b->x2, c->h, NULL);
    bundle_backward_rest(c, &gate_up, c->h, b->s_gate_up, dy);
    if (through)
        norm_backward(c, layer->norm2, 1, m->hidden, b->x2, b->rstd2, c->dh, c->dx, c->dx);
}

/* c->dx: gradient of x2. Sets d_o if `depth` asks for it. */
static void o_backward(struct compute *c, int64_t number, enum depth depth)
{
    const struct bundle o = alone(c, &c->l->layers[number].o);
    struct block *b = &c->blocks[number];
    const struct kern_cmat dx2 = cmat(c, c->dx, c->m->hidden);
    bundle_backward(c, &o, b->s_o, &dx2, NULL, depth >= TO_QKV ? c->d_o : NULL);
    bundle_backward_rest(c, &o, b->o, b->s_o, &dx2);
}

/* Sets dq, dk, dv: gradients of the outputs of q, k and v. */
static void attention_backward(struct compute *c, int64_t number)
{
    const struct model *m = c->m;
    const struct layer *layer = &c->l->layers[number];
    struct block *b = &c->blocks[number];
    int64_t nq = m->nhead * m->head_dim, nkv = m->nkv * m->head_dim;
    struct kern_attention_grad grad = { .shape = shape_of(c, number),
                                        .q = cmat(c, b->q, nq),
                                        .k = cmat(c, b->k, nkv),
                                        .v = cmat(c, b->v, nkv),
                                        .o = cmat(c, b->o, nq),
                                        .d_o = cmat(c, c->d_o, nq),
                                        .lse = b->lse,
                                        .dq = mat(c, c->dq, nq),
                                        .dk = mat(c, c->dk, nkv),
                                        .dv = mat(c, c->dv, nkv),
                                        .scratch = c->attention,
                                        .dsinks = grad_of(c, c->l->layers[number].sinks) };
    c->device->ops->attention_grad(c->stream, &grad);
    turn(c, c->dq, m->nhead, true);
    turn(c, c->dk, m->nkv, true);
    if (m->qk_norm) {
        norm_backward(c, layer->q_norm, m->nhead, m->head_dim, b->q_raw, b->rstd_q, c->dq, NULL, c->dq);
        norm_backward(c, layer->k_norm, m->nkv, m->head_dim, b->k_raw, b->rstd_k, c->dk, NULL, c->dk);
    }
}

static void qkv_backward(struct compute *c, int64_t number, enum depth depth)
{
    const struct model *m = c->m;
    const struct layer *layer = &c->l->layers[number];
    struct block *b = &c->blocks[number];
    struct bundle qkv = qkv_of(c, layer);
    int64_t nq = m->nhead * m->head_dim, nkv = m->nkv * m->head_dim;
    const struct kern_cmat dy[BUNDLE] = { cmat(c, c->dq, nq), cmat(c, c->dk, nkv), cmat(c, c->dv, nkv) };
    bundle_backward(c, &qkv, b->s_qkv, dy, NULL, depth == TO_INPUT ? c->dh : NULL);
    if (linear_trains(c, &layer->q) || linear_trains(c, &layer->k) || linear_trains(c, &layer->v))
        norm_forward(c, layer->norm1, 1, m->hidden, b->x, c->h, NULL);
    bundle_backward_rest(c, &qkv, c->h, b->s_qkv, dy);
    if (depth == TO_INPUT)
        norm_backward(c, layer->norm1, 1, m->hidden, b->x, b->rstd1, c->dh, c->dx, c->dx);
}

/* True if the gradient of a block's input is wanted. */
static bool wants_dx(const struct compute *c, int64_t number)
{
    return number > compute_first_layer(c->l) || compute_trains_first(c->l);
}

/* True if the gradient propagates through the experts of a block. */
static bool through_experts(const struct compute *c, const struct layer *layer, enum depth depth)
{
    return depth >= TO_OUT || grad_of(c, layer->norm2);
}

void block_serve_backward(struct compute *c, int64_t number)
{
    const struct layer *layer = &c->l->layers[number];
    const enum depth depth = depth_of(c, layer, wants_dx(c, number));
    if (c->blocks[number].recomputed)
        exchange_serve_forward(c, number, false);
    if (depth > TO_DOWN)
        exchange_serve_backward(c, number, through_experts(c, layer, depth));
}

void block_backward(struct compute *c, int64_t number)
{
    const struct layer *layer = &c->l->layers[number];
    const enum depth depth = depth_of(c, layer, wants_dx(c, number));
    if (has_part(c, number, PART_DOWN) && !layer->experts)
        down_backward(c, number, depth);
    if (has_part(c, number, PART_GATE_UP) && depth > TO_DOWN) {
        if (layer->experts)
            experts_backward(c, number, through_experts(c, layer, depth));
        else
            gate_up_backward(c, number, depth);
    }
    if (has_part(c, number, PART_O) && depth >= TO_OUT)
        o_backward(c, number, depth);
    if (has_part(c, number, PART_QKV) && depth >= TO_QKV) {
        attention_backward(c, number);
        qkv_backward(c, number, depth);
    }
}
