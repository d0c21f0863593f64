/* SPDX-License-Identifier: Apache-2.0 */
/* The mixture of experts of a block. Each expert is a gated MLP over the rows of the tokens that chose it, one after
 * the other, with the linear layers of any block. The weight of a choice is applied to the expert's activation, so that
 * a token's output is a plain sum over its experts. */
#include "model/bump.h"
#include "model/expert_exchange.h"
#include "model/experts_impl.h"

int64_t experts_one(const struct compute *c, int64_t ntok)
{
    return c->m->nexperts ? ntok + EXPERT_ROWS - 1 : ntok;
}

int64_t experts_all(const struct compute *c, int64_t ntok)
{
    return c->m->nexperts ? kern_route_rows(ntok, c->m->nexperts, c->m->top_k, EXPERT_ROWS) : 0;
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
    if (backward)
        exchange_alloc(c, v, ntok);
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
                                      .unit = c->batch.ntok > 1 ? EXPERT_ROWS : 1,
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
static void bias_backward(struct compute *c, const struct layer *layer, int64_t expert, const struct expert_work *w,
                          int64_t first, int64_t n, struct kern_cmat dy)
{
    const struct kern_expert_bias_grad grad = { .nrow = n,
                                                .ncol = c->m->hidden,
                                                .choices = w->routed->choices + first,
                                                .weights = w->routed->weights,
                                                .bias = row_of(c, layer->down_bias, expert),
                                                .dy = dy,
                                                .dweights = w->dweights,
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

struct expert_work experts_work(const struct compute *c, int64_t number)
{
    const struct block *b = &c->blocks[number];
    return (struct expert_work){ .routed = &b->routed,
                                 .rows = c->expert_rows,
                                 .gate = b->gate,
                                 .up = b->up,
                                 .s_gate_up = b->s_gate_up,
                                 .s_down = b->s_down,
                                 .dweights = c->dweights };
}

/* The rows of one expert, and where they are in the buffers. */
struct part {
    const struct mlp *x;
    struct bundle gate_up, down;
    int64_t first, n;
    void *rows, *gate, *up, *s_gate_up, *s_down; /* up NULL: gate has both in turn */
};

static struct part part_of(const struct compute *c, const struct expert_work *w, int64_t number, int64_t expert)
{
    const struct mlp *x = &c->l->layers[number].experts[expert];
    const int64_t first = w->routed->starts[expert], inner = c->m->expert_inner, r = c->expert_rank;
    return (struct part){
        .x = x,
        .gate_up = bundle_of(c, (const struct linear *[]){ &x->gate, &x->up }, mlp_ngates(x)),
        .down = bundle_of(c, (const struct linear *[]){ &x->down }, 1),
        .first = first,
        .n = w->routed->starts[expert + 1] - first,
        .rows = compute_row(c, w->rows, first, c->m->hidden),
        .gate = compute_row(c, w->gate, first, x->gate.nout),
        .up = x->joined ? NULL : compute_row(c, w->up, first, inner),
        .s_gate_up = compute_row(c, w->s_gate_up, first, r),
        .s_down = compute_row(c, w->s_down, first, r),
    };
}

/* The linear layers take their number of rows from the batch. */
void experts_forward_one(struct compute *c, const struct expert_work *w, int64_t number, int64_t expert, bool wants_y)
{
    const struct routed *r = w->routed;
    const struct part p = part_of(c, w, number, expert);
    const int64_t ntok = c->batch.ntok, inner = c->m->expert_inner;
    const struct kern_mat y[BUNDLE] = { mat(c, p.gate, p.x->gate.nout), mat(c, p.up, inner) },
                          to = mat(c, p.rows, c->m->hidden);
    if (p.n == 0)
        return;
    if (!w->arrived)
        experts_gather(c, r, p.first, p.n, c->h, p.rows);
    c->batch.ntok = p.n;
    bundle_forward(c, &p.gate_up, p.rows, p.s_gate_up, NULL, y);
    if (wants_y || p.x->down.r)
        experts_act(c, r, p.first, p.n, p.gate, p.up, c->act);
    if (wants_y)
        bundle_forward(c, &p.down, c->act, p.s_down, NULL, &to);
    else
        bundle_down(c, &p.down, c->act, p.s_down);
    if (wants_y)
        experts_bias(c, &c->l->layers[number], expert, p.first, p.n, r, p.rows);
    c->batch.ntok = ntok;
}

static void forward_all(struct compute *c, int64_t number, bool wants_y)
{
    const struct expert_work own = experts_work(c, number);
    for (int64_t e = 0; e < c->l->layers[number].nexperts; e++)
        experts_forward_one(c, &own, number, e, wants_y);
}

void experts_forward(struct compute *c, int64_t number, void *out)
{
    const struct layer *layer = &c->l->layers[number];
    struct block *b = &c->blocks[number];
    experts_route(c, layer, c->h, &b->routed);
    if (out)
        balance_add(c, &b->routed);
    if (c->owners)
        exchange_forward(c, number, out != NULL);
    else
        forward_all(c, number, out != NULL);
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
static void act_backward(struct compute *c, const struct expert_work *w, const struct part *p)
{
    const int64_t inner = c->m->expert_inner;
    const struct kern_mat act = mat(c, c->act, inner), gate = mat(c, p->gate, p->x->gate.nout),
                          up = p->up ? mat(c, p->up, inner) : (struct kern_mat){ 0 };
    const struct kern_expert_act_grad grad = { .nrow = p->n,
                                               .ncol = inner,
                                               .choices = w->routed->choices + p->first,
                                               .weights = w->routed->weights,
                                               .dweights = w->dweights,
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

void experts_backward_one(struct compute *c, const struct expert_work *w, int64_t number, int64_t expert, bool through)
{
    const struct routed *r = w->routed;
    const struct part p = part_of(c, w, number, expert);
    const int64_t ntok = c->batch.ntok, inner = c->m->expert_inner;
    const struct kern_cmat dy = cmat(c, p.rows, c->m->hidden),
                           dup[BUNDLE] = { cmat(c, p.gate, p.x->gate.nout), cmat(c, p.up, inner) };
    const void *x = w->arrived ? compute_row(c, w->x, p.first, c->m->hidden) : c->expert_x;
    if (p.n == 0)
        return;
    if (!w->arrived)
        experts_gather(c, r, p.first, p.n, c->dx, p.rows);
    c->batch.ntok = p.n;
    bundle_backward(c, &p.down, p.s_down, &dy, NULL, c->act);
    act_backward(c, w, &p);
    bias_backward(c, &c->l->layers[number], expert, w, p.first, p.n, dy);
    bundle_backward_rest(c, &p.down, c->act, p.s_down, &dy);
    bundle_backward(c, &p.gate_up, p.s_gate_up, dup, NULL, through ? p.rows : NULL);
    if (!w->arrived && (linear_trains(c, &p.x->gate) || linear_trains(c, &p.x->up)))
        experts_gather(c, r, p.first, p.n, c->h, c->expert_x);
    bundle_backward_rest(c, &p.gate_up, x, p.s_gate_up, dup);
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

static void backward_all(struct compute *c, int64_t number, bool through)
{
    const struct expert_work own = experts_work(c, number);
    for (int64_t e = 0; e < c->l->layers[number].nexperts; e++)
        experts_backward_one(c, &own, number, e, through);
}

void experts_backward(struct compute *c, int64_t number, bool through)
{
    const struct layer *layer = &c->l->layers[number];
    struct block *b = &c->blocks[number];
    if (experts_train(c, layer))
        norm_forward(c, layer->norm2, 1, c->m->hidden, b->x2, c->h, NULL);
    if (c->owners)
        exchange_backward(c, number, through);
    else
        backward_all(c, number, through);
    if (through)
        experts_sum(c, &b->routed, NULL, c->dh);
    route_backward(c, number, through);
    if (layer->shares)
        shared_backward(c, number, through);
    if (through)
        norm_backward(c, layer->norm2, 1, c->m->hidden, b->x2, b->rstd2, c->dh, c->dx, c->dx);
}
