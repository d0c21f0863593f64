/* SPDX-License-Identifier: Apache-2.0 */
/* The mixture of experts of a block. Each expert is a gated MLP over the rows of the tokens that chose it, one after
 * the other, with the linear layers of any block. The weight of a choice is applied to the expert's activation, so that
 * a token's output is a plain sum over its experts. */
#include "model/bump.h"
#include "model/compute_impl.h"

/* Few shapes of products should occur: each is prepared once. */
enum { UNIT = 8 };

int64_t experts_one(const struct compute *c, int64_t ntok)
{
    return c->m->nexperts ? ntok + UNIT - 1 : ntok;
}

int64_t experts_all(const struct compute *c, int64_t ntok)
{
    return c->m->nexperts ? kern_route_rows(ntok, c->m->nexperts, c->m->top_k, UNIT) : 0;
}

void routed_alloc(const struct compute *c, struct bump *v, int64_t ntok, struct routed *r)
{
    r->logits = bump_floats(v, ntok * c->m->nexperts);
    r->weights = bump_floats(v, ntok * c->m->top_k);
    r->experts = bump_ints(v, ntok * c->m->top_k);
    r->rows = bump_ints(v, ntok * c->m->top_k);
    r->choices = bump_ints(v, experts_all(c, ntok));
    r->s = bump_acts(v, c->widest, ntok * c->router_rank);
}

void experts_alloc(struct compute *c, struct bump *v, int64_t ntok, bool backward)
{
    c->expert_rows = bump_acts(v, c->widest, experts_all(c, ntok) * c->m->hidden);
    c->expert_x = bump_acts(v, c->widest, backward && c->m->nexperts ? experts_one(c, ntok) * c->m->hidden : 0);
    c->dweights = bump_floats(v, backward ? ntok * c->m->top_k : 0);
    c->dlogits = bump_floats(v, backward ? ntok * c->m->nexperts : 0);
}

static struct kern_router router_of(const struct compute *c, const struct layer *layer)
{
    return (struct kern_router){ .nexperts = c->m->nexperts,
                                 .top_k = c->m->top_k,
                                 .sigmoid = c->m->sigmoid,
                                 .normalised = c->m->normalised,
                                 .scale = c->m->routed_scale,
                                 .bias = value_of(c, layer->router_bias).data,
                                 .ngroup = c->m->ngroup,
                                 .top_groups = c->m->top_groups };
}

void experts_route(struct compute *c, const struct layer *layer, const void *h, struct routed *r)
{
    const struct linear *router = &layer->router;
    const struct bundle b = bundle_of(c, &router, 1);
    const struct kern_mat logits = { r->logits, c->m->nexperts, KERN_F32 };
    const struct kern_route route = { .router = router_of(c, layer),
                                      .ntok = c->batch.ntok,
                                      .unit = c->batch.ntok > 1 ? UNIT : 1,
                                      .logits = r->logits,
                                      .weights = r->weights,
                                      .experts = r->experts,
                                      .rows = r->rows,
                                      .choices = r->choices,
                                      .starts = r->starts };
    bundle_forward(c, &b, h, r->s, NULL, &logits);
    c->device->experts->route(c->stream, &route);
}

void experts_gather(struct compute *c, const struct routed *r, int64_t first, int64_t n, const void *src, void *dst)
{
    const struct kern_expert_rows rows = { .nrow = n,
                                           .ncol = c->m->hidden,
                                           .top_k = c->m->top_k,
                                           .choices = r->choices + first,
                                           .src = cmat(c, src, c->m->hidden),
                                           .dst = mat(c, dst, c->m->hidden) };
    c->device->experts->rows(c->stream, &rows);
}

void experts_act(struct compute *c, const struct routed *r, int64_t first, int64_t n, const void *gate, const void *up,
                 void *y)
{
    const int64_t inner = c->m->expert_inner;
    const struct kern_expert_act act = { .nrow = n,
                                         .ncol = inner,
                                         .choices = r->choices + first,
                                         .weights = r->weights,
                                         .gate = cmat(c, gate, up ? inner : 2 * inner),
                                         .up = up ? cmat(c, up, inner) : no_cmat,
                                         .slope = c->m->gate_slope,
                                         .limit = c->m->gate_limit,
                                         .y = mat(c, y, inner) };
    c->device->experts->act(c->stream, &act);
}

void experts_bias(struct compute *c, const struct layer *layer, int64_t expert, int64_t first, int64_t n,
                  const struct routed *r, void *y)
{
    const struct kern_expert_bias bias = { .nrow = n,
                                           .ncol = c->m->hidden,
                                           .choices = r->choices + first,
                                           .weights = r->weights,
                                           .bias = row_of(c, layer->down_bias, expert),
                                           .y = mat(c, y, c->m->hidden) };
    if (bias.bias.data)
        c->device->experts->bias(c->stream, &bias);
}

/* Adds the bias's part to the gradients of the choices' weights, and its own gradient. dy: of the rows. */
static void bias_backward(struct compute *c, const struct layer *layer, int64_t expert, const struct routed *r,
                          int64_t first, int64_t n, struct kern_cmat dy)
{
    const struct kern_expert_bias_grad grad = { .nrow = n,
                                                .ncol = c->m->hidden,
                                                .choices = r->choices + first,
                                                .weights = r->weights,
                                                .bias = row_of(c, layer->down_bias, expert),
                                                .dy = dy,
                                                .dweights = c->dweights,
                                                .dbias = grad_row_of(c, layer->down_bias, expert),
                                                .scratch = c->sums };
    if (grad.bias.data)
        c->device->experts->bias_grad(c->stream, &grad);
}

void experts_sum(struct compute *c, const struct routed *r, const void *add, void *dst)
{
    const struct kern_expert_sum sum = { .ntok = c->batch.ntok,
                                         .ncol = c->m->hidden,
                                         .top_k = c->m->top_k,
                                         .rows = r->rows,
                                         .src = cmat(c, c->expert_rows, c->m->hidden),
                                         .add = add ? cmat(c, add, c->m->hidden) : no_cmat,
                                         .dst = mat(c, dst, c->m->hidden) };
    c->device->experts->sum(c->stream, &sum);
}

/* The rows of one expert, and where they are in the buffers of the block. */
struct part {
    const struct mlp *x;
    struct bundle gate_up, down;
    int64_t first, n;
    void *rows, *gate, *up, *s_gate_up, *s_down; /* up NULL: gate has both in turn */
};

static struct part part_of(const struct compute *c, int64_t number, int64_t expert)
{
    const struct block *b = &c->blocks[number];
    const struct mlp *x = &c->l->layers[number].experts[expert];
    const int64_t first = b->routed.starts[expert], inner = c->m->expert_inner, r = c->expert_rank;
    return (struct part){
        .x = x,
        .gate_up = bundle_of(c, (const struct linear *[]){ &x->gate, &x->up }, mlp_ngates(x)),
        .down = bundle_of(c, (const struct linear *[]){ &x->down }, 1),
        .first = first,
        .n = b->routed.starts[expert + 1] - first,
        .rows = compute_row(c, c->expert_rows, first, c->m->hidden),
        .gate = compute_row(c, b->gate, first, x->gate.nout),
        .up = x->joined ? NULL : compute_row(c, b->up, first, inner),
        .s_gate_up = compute_row(c, b->s_gate_up, first, r),
        .s_down = compute_row(c, b->s_down, first, r),
    };
}

/* The linear layers take their number of rows from the batch. */
static void forward_one(struct compute *c, int64_t number, int64_t expert, bool out)
{
    const struct routed *r = &c->blocks[number].routed;
    const struct part p = part_of(c, number, expert);
    const int64_t ntok = c->batch.ntok, inner = c->m->expert_inner;
    const struct kern_mat y[BUNDLE] = { mat(c, p.gate, p.x->gate.nout), mat(c, p.up, inner) },
                          to = mat(c, p.rows, c->m->hidden);
    if (p.n == 0)
        return;
    experts_gather(c, r, p.first, p.n, c->h, p.rows);
    c->batch.ntok = p.n;
    bundle_forward(c, &p.gate_up, p.rows, p.s_gate_up, NULL, y);
    if (out || p.x->down.r)
        experts_act(c, r, p.first, p.n, p.gate, p.up, c->act);
    if (out)
        bundle_forward(c, &p.down, c->act, p.s_down, NULL, &to);
    else
        bundle_down(c, &p.down, c->act, p.s_down);
    if (out)
        experts_bias(c, &c->l->layers[number], expert, p.first, p.n, r, p.rows);
    c->batch.ntok = ntok;
}

void experts_forward(struct compute *c, int64_t number, void *out)
{
    const struct layer *layer = &c->l->layers[number];
    struct block *b = &c->blocks[number];
    experts_route(c, layer, c->h, &b->routed);
    if (out)
        balance_add(c, &b->routed);
    for (int64_t e = 0; e < layer->nexperts; e++)
        forward_one(c, number, e, out != NULL);
    if (layer->shares)
        shared_forward(c, number, out != NULL);
    if (out)
        experts_sum(c, &b->routed, layer->shares ? c->dx : b->x2, out);
}

static bool trains(const struct compute *c, const struct mlp *x)
{
    return linear_trains(c, &x->gate) || linear_trains(c, &x->up) || linear_trains(c, &x->down);
}

bool experts_train(const struct compute *c, const struct layer *layer)
{
    bool any = linear_trains(c, &layer->router) || shared_trains(c, layer);
    for (int64_t e = 0; e < layer->nexperts && !any; e++)
        any = trains(c, &layer->experts[e]);
    return any;
}

/* Replaces gate and up by their gradients, and c->act by the activation if down trains. */
static void act_backward(struct compute *c, const struct routed *r, const struct part *p)
{
    const int64_t inner = c->m->expert_inner;
    const struct kern_mat act = mat(c, c->act, inner), gate = mat(c, p->gate, p->x->gate.nout),
                          up = p->up ? mat(c, p->up, inner) : (struct kern_mat){ 0 };
    const struct kern_expert_act_grad grad = { .nrow = p->n,
                                               .ncol = inner,
                                               .choices = r->choices + p->first,
                                               .weights = r->weights,
                                               .dweights = c->dweights,
                                               .gate = kern_const(gate),
                                               .up = kern_const(up),
                                               .dy = kern_const(act),
                                               .slope = c->m->gate_slope,
                                               .limit = c->m->gate_limit,
                                               .dgate = gate,
                                               .dup = up,
                                               .y = linear_trains(c, &p->x->down) ? act : (struct kern_mat){ 0 } };
    c->device->experts->act_grad(c->stream, &grad);
}

/* The gradient of an expert's input takes the place of its rows. */
static void backward_one(struct compute *c, int64_t number, int64_t expert, bool through)
{
    const struct routed *r = &c->blocks[number].routed;
    const struct part p = part_of(c, number, expert);
    const int64_t ntok = c->batch.ntok, inner = c->m->expert_inner;
    const struct kern_cmat dy = cmat(c, p.rows, c->m->hidden),
                           dup[BUNDLE] = { cmat(c, p.gate, p.x->gate.nout), cmat(c, p.up, inner) };
    if (p.n == 0)
        return;
    experts_gather(c, r, p.first, p.n, c->dx, p.rows);
    c->batch.ntok = p.n;
    bundle_backward(c, &p.down, p.s_down, &dy, NULL, c->act);
    act_backward(c, r, &p);
    bias_backward(c, &c->l->layers[number], expert, r, p.first, p.n, dy);
    bundle_backward_rest(c, &p.down, c->act, p.s_down, &dy);
    bundle_backward(c, &p.gate_up, p.s_gate_up, dup, NULL, through ? p.rows : NULL);
    if (linear_trains(c, &p.x->gate) || linear_trains(c, &p.x->up))
        experts_gather(c, r, p.first, p.n, c->h, c->expert_x);
    bundle_backward_rest(c, &p.gate_up, c->expert_x, p.s_gate_up, dup);
    c->batch.ntok = ntok;
}

/* From the gradients of the weights. through: adds the router's part to c->dh. */
static void route_backward(struct compute *c, int64_t number, bool through)
{
    const struct routed *r = &c->blocks[number].routed;
    const struct linear *router = &c->l->layers[number].router;
    const struct bundle b = bundle_of(c, &router, 1);
    const struct kern_cmat dlogits = { c->dlogits, c->m->nexperts, KERN_F32 };
    const struct kern_route_grad grad = { .router = router_of(c, &c->l->layers[number]),
                                          .ntok = c->batch.ntok,
                                          .slopes = balance_slopes(c),
                                          .nsloped = c->batch.nreal,
                                          .logits = r->logits,
                                          .weights = r->weights,
                                          .dweights = c->dweights,
                                          .experts = r->experts,
                                          .dlogits = c->dlogits };
    c->device->experts->route_grad(c->stream, &grad);
    bundle_backward(c, &b, r->s, &dlogits, c->dh, through ? c->dh : NULL);
    bundle_backward_rest(c, &b, c->h, r->s, &dlogits);
}

void experts_backward(struct compute *c, int64_t number, bool through)
{
    const struct layer *layer = &c->l->layers[number];
    struct block *b = &c->blocks[number];
    if (experts_train(c, layer))
        norm_forward(c, layer->norm2, 1, c->m->hidden, b->x2, c->h, NULL);
    for (int64_t e = 0; e < layer->nexperts; e++)
        backward_one(c, number, e, through);
    if (through)
        experts_sum(c, &b->routed, NULL, c->dh);
    route_backward(c, number, through);
    if (layer->shares)
        shared_backward(c, number, through);
    if (through)
        norm_backward(c, layer->norm2, 1, c->m->hidden, b->x2, b->rstd2, c->dh, c->dx, c->dx);
}
