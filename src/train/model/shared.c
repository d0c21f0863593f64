/* SPDX-License-Identifier: Apache-2.0 */
/* The expert of a mixture that every token shares: a gated MLP whose activation may have a weight for each token, the
 * sigmoid of a linear layer with one output. */
#include "model/bump.h"
#include "model/compute_impl.h"

void shared_alloc(const struct compute *c, struct bump *v, const struct layer *layer, struct shared *s)
{
    const enum kern_dtype act = c->widest;
    const struct mlp *x = &layer->shared;
    const int64_t nweights = layer->weighs ? c->ntok : 0;
    s->logits = bump_floats(v, nweights);
    s->weights = bump_floats(v, nweights);
    s->gate = bump_acts(v, act, c->ntok * c->m->shared_inner);
    s->up = bump_acts(v, act, c->ntok * c->m->shared_inner);
    s->s = bump_acts(v, act, nweights * layer->shared_gate.r);
    s->s_gate_up = bump_acts(v, act, c->ntok * (x->gate.r + x->up.r));
    s->s_down = bump_acts(v, act, c->ntok * x->down.r);
}

bool shared_trains(const struct compute *c, const struct layer *layer)
{
    const struct mlp *x = &layer->shared;
    return layer->shares && (linear_trains(c, &x->gate) || linear_trains(c, &x->up) || linear_trains(c, &x->down) ||
                             (layer->weighs && linear_trains(c, &layer->shared_gate)));
}

void shared_weigh(struct compute *c, int64_t ntok, const float *logits, float *weights)
{
    const struct kern_expert_gate gate = { .ntok = ntok, .logits = logits, .weights = weights };
    c->device->experts->gate(c->stream, &gate);
}

void shared_act(struct compute *c, const float *weights, const void *gate, const void *up, void *y)
{
    const int64_t inner = c->m->shared_inner;
    const struct kern_expert_act act = { .nrow = c->batch.ntok,
                                         .ncol = inner,
                                         .weights = weights,
                                         .gate = cmat(c, gate, inner),
                                         .up = cmat(c, up, inner),
                                         .y = mat(c, y, inner) };
    c->device->experts->act(c->stream, &act);
}

/* Its layers, as bundles. */
struct parts {
    struct bundle weight, gate_up, down; /* weight: if there is one */
};

static struct parts parts_of(const struct compute *c, const struct layer *layer)
{
    const struct mlp *x = &layer->shared;
    return (struct parts){ .weight = bundle_of(c, (const struct linear *[]){ &layer->shared_gate }, layer->weighs),
                           .gate_up = bundle_of(c, (const struct linear *[]){ &x->gate, &x->up }, 2),
                           .down = bundle_of(c, (const struct linear *[]){ &x->down }, 1) };
}

void shared_forward(struct compute *c, int64_t number, bool wants_y)
{
    const struct layer *layer = &c->l->layers[number];
    const struct block *b = &c->blocks[number];
    const struct shared *s = &b->shared;
    const struct parts p = parts_of(c, layer);
    const int64_t inner = c->m->shared_inner;
    const struct kern_mat logits = { s->logits, 1, KERN_F32 },
                          y[BUNDLE] = { mat(c, s->gate, inner), mat(c, s->up, inner) },
                          to = mat(c, c->dx, c->m->hidden);
    if (layer->weighs) {
        bundle_forward(c, &p.weight, c->h, s->s, NULL, &logits);
        shared_weigh(c, c->batch.ntok, s->logits, s->weights);
    }
    bundle_forward(c, &p.gate_up, c->h, s->s_gate_up, NULL, y);
    if (wants_y || layer->shared.down.r)
        shared_act(c, layer->weighs ? s->weights : NULL, s->gate, s->up, c->act);
    if (wants_y)
        bundle_forward(c, &p.down, c->act, s->s_down, b->x2, &to);
    else
        bundle_down(c, &p.down, c->act, s->s_down);
}

/* Replaces gate and up by their gradients, logits by the gradients of the weights, and c->act by the activation if down
 * trains. */
static void act_backward(struct compute *c, const struct layer *layer, const struct shared *s)
{
    const int64_t inner = c->m->shared_inner;
    const struct kern_mat act = mat(c, c->act, inner);
    const struct kern_expert_act_grad grad = { .nrow = c->batch.ntok,
                                               .ncol = inner,
                                               .weights = layer->weighs ? s->weights : NULL,
                                               .dweights = s->logits,
                                               .gate = cmat(c, s->gate, inner),
                                               .up = cmat(c, s->up, inner),
                                               .dy = kern_const(act),
                                               .dgate = mat(c, s->gate, inner),
                                               .dup = mat(c, s->up, inner),
                                               .y = linear_trains(c, &layer->shared.down) ? act
                                                                                          : (struct kern_mat){ 0 } };
    c->device->experts->act_grad(c->stream, &grad);
}

/* From the gradients of the weights, in logits. */
static void weight_backward(struct compute *c, const struct shared *s, const struct bundle *weight, void *dh)
{
    const struct kern_cmat dlogits = { s->logits, 1, KERN_F32 };
    const struct kern_expert_gate_grad gate = {
        .ntok = c->batch.ntok, .weights = s->weights, .dweights = s->logits, .dlogits = s->logits
    };
    c->device->experts->gate_grad(c->stream, &gate);
    bundle_backward(c, weight, s->s, &dlogits, dh, dh);
    bundle_backward_rest(c, weight, c->h, s->s, &dlogits);
}

void shared_backward(struct compute *c, int64_t number, bool through)
{
    const struct layer *layer = &c->l->layers[number];
    const struct shared *s = &c->blocks[number].shared;
    const struct parts p = parts_of(c, layer);
    const int64_t inner = c->m->shared_inner;
    const struct kern_cmat dx = cmat(c, c->dx, c->m->hidden),
                           dy[BUNDLE] = { cmat(c, s->gate, inner), cmat(c, s->up, inner) };
    void *dh = through ? c->dh : NULL;
    bundle_backward(c, &p.down, s->s_down, &dx, NULL, c->act);
    act_backward(c, layer, s);
    bundle_backward_rest(c, &p.down, c->act, s->s_down, &dx);
    bundle_backward(c, &p.gate_up, s->s_gate_up, dy, dh, dh);
    bundle_backward_rest(c, &p.gate_up, c->h, s->s_gate_up, dy);
    if (layer->weighs)
        weight_backward(c, s, &p.weight, dh);
}
