/* SPDX-License-Identifier: Apache-2.0 */
/* Exchanges tokens between the ranks of an expert group. In turn k, rank p sends rows to rank p + k and serves those of
 * rank p - k. The owner of an expert makes the calls that the sender would have made, with the same rows in the same
 * order, and adds gradients of parameters to the sender's: so the bits are those of a run without groups. Activations
 * for the backward pass return to the sender, so that a rank never holds more rows of others than one turn brings. */
#include "model/expert_exchange.h"

#include "model/bump.h"
#include "model/experts_impl.h"

/* The facts that dropout of the sender depends on. The starts of its rows follow. */
struct expert_head {
    struct kern_rng_offset rng_offset;
    float dropout;
};

/* Ranks by their place in the group. The rows for `to` are [first, first + n) of this rank's routing. */
struct turn {
    uint32_t to, from;
    int64_t first, n, arrived;
};

/* Rows that one rank may have for the experts of another. */
static int64_t most_rows(const struct model *m, int64_t nowners, int64_t ntok)
{
    const int64_t nexperts = nowners > 1 ? m->nexperts / nowners : 0, top_k = m->top_k < nexperts ? m->top_k : nexperts;
    return kern_route_rows(ntok, nexperts, top_k, EXPERT_ROWS);
}

size_t exchange_nbytes(const struct model *m, const struct layout *l, int64_t nowners, int64_t ntok)
{
    const int64_t nrow = most_rows(m, nowners, ntok),
                  ncol = 2 * m->hidden + 2 * m->expert_inner + 2 * compute_expert_rank(l, m->nlayer);
    const size_t head = sizeof(struct expert_head) + (size_t)(m->nexperts + 1) * sizeof(int64_t),
                 one = (size_t)(ncol * kern_dtype_bytes(layout_widest(l))) + sizeof(float) + sizeof(int32_t);
    return nowners > 1 ? head + (size_t)nrow * one : 0;
}

void exchange_alloc(struct compute *c, struct bump *v, int64_t ntok)
{
    struct expert_inbox *in = &c->inbox;
    const int64_t n = most_rows(c->m, c->nowners, ntok), inner = c->m->expert_inner;
    if (c->nowners < 2)
        return;
    in->nrow = n;
    in->head = bump_alloc(v, sizeof *in->head);
    in->head_out = bump_alloc(v, sizeof *in->head_out);
    in->routed.starts = bump_alloc(v, (size_t)(c->m->nexperts + 1) * sizeof(int64_t));
    in->starts_out = bump_alloc(v, (size_t)(c->m->nexperts + 1) * sizeof(int64_t));
    in->routed.weights = bump_floats(v, n);
    in->routed.choices = bump_ints(v, n);
    in->weights_out = bump_floats(v, n);
    in->dweights = bump_floats(v, n);
    in->rows = bump_acts(v, c->widest, n * c->m->hidden);
    in->x = bump_acts(v, c->widest, n * c->m->hidden);
    in->x_out = bump_acts(v, c->widest, n * c->m->hidden);
    in->gate = bump_acts(v, c->widest, n * inner); /* layers that give gate and up in turn take both places */
    in->up = bump_acts(v, c->widest, n * inner);
    in->s_gate_up = bump_acts(v, c->widest, n * c->expert_rank);
    in->s_down = bump_acts(v, c->widest, n * c->expert_rank);
}

int exchange_status(const struct compute *c, struct fsdpck_error *err)
{
    if (c->exchange_error.code && err && !err->code)
        *err = c->exchange_error;
    return c->exchange_error.code;
}

static void run_trade(struct compute *c, struct comm_trade *t, const struct turn *turn)
{
    t->to = c->owners->first + turn->to;
    t->from = c->owners->first + turn->from;
    if (!c->exchange_error.code)
        c->owners->trade(c->owners->ctx, t, &c->exchange_error);
}

static int64_t nowned(const struct compute *c)
{
    return c->m->nexperts / c->owners->n;
}

/* False, and an error is noted, unless starts of rows for one's own experts rise from 0 and find room. */
static bool check_starts(struct compute *c, const int64_t *starts, const struct turn *turn)
{
    bool sound = starts[0] == 0 && starts[nowned(c)] <= c->inbox.nrow;
    for (int64_t i = 0; i < nowned(c); i++)
        sound = sound && starts[i] <= starts[i + 1];
    if (!sound)
        fsdpck_error_set(&c->exchange_error, FSDPCK_ERR_FORMAT, NULL,
                         "rank %u sent numbers of rows for experts that cannot be", c->owners->first + turn->from);
    return sound;
}

/* Tells `to` how many rows each of its experts gets, and learns the same from `from`. mine: this rank has a
 * micro-batch. */
static struct turn meet(struct compute *c, int64_t number, uint32_t k, bool mine)
{
    const uint32_t n = c->owners->n, place = c->owners->number;
    struct turn turn = { .to = (place + k) % n, .from = (place + n - k) % n };
    struct expert_inbox *in = &c->inbox;
    const int64_t *starts = c->blocks[number].routed.starts + turn.to * nowned(c);
    int64_t *theirs = in->routed.starts + place * nowned(c);
    const size_t nbytes = (size_t)(nowned(c) + 1) * sizeof *starts;
    struct comm_trade heads = { 0 };
    for (int64_t i = 0; i <= nowned(c); i++)
        in->starts_out[i] = mine ? starts[i] - starts[0] : 0;
    *in->head_out = (struct expert_head){ *c->on.rng_offset, c->dropout };
    trade_send(&heads, in->head_out, sizeof *in->head_out);
    trade_send(&heads, in->starts_out, nbytes);
    trade_receive(&heads, in->head, sizeof *in->head);
    trade_receive(&heads, theirs, nbytes);
    run_trade(c, &heads, &turn);
    turn.first = mine ? starts[0] : 0;
    turn.n = in->starts_out[nowned(c)];
    turn.arrived = c->exchange_error.code || !check_starts(c, theirs, &turn) ? 0 : theirs[nowned(c)];
    return turn;
}

/* The rows of `from`, from the first one on. */
static struct expert_work work_of_inbox(const struct compute *c)
{
    const struct expert_inbox *in = &c->inbox;
    return (struct expert_work){ .routed = &in->routed,
                                 .rows = in->rows,
                                 .x = in->x,
                                 .arrived = true,
                                 .gate = in->gate,
                                 .up = in->up,
                                 .s_gate_up = in->s_gate_up,
                                 .s_down = in->s_down,
                                 .dweights = in->dweights };
}

typedef void add_span(struct comm_trade *t, void *data, size_t nbytes);

static void add_rows(const struct compute *c, struct comm_trade *t, add_span *add, void *data, int64_t first, int64_t n,
                     int64_t ncol)
{
    add(t, compute_row(c, data, first, ncol), (size_t)(n * ncol * kern_dtype_bytes(c->dtype)));
}

/* The activations of rows that the backward pass needs. */
static void add_kept(const struct compute *c, struct comm_trade *t, add_span *add, int64_t number,
                     const struct expert_work *w, int64_t first, int64_t n)
{
    const struct mlp *x = c->l->layers[number].experts;
    add_rows(c, t, add, w->gate, first, n, x->gate.nout);
    if (!x->joined)
        add_rows(c, t, add, w->up, first, n, c->m->expert_inner);
    add_rows(c, t, add, w->s_gate_up, first, n, c->expert_rank);
    add_rows(c, t, add, w->s_down, first, n, c->expert_rank);
}

/* The rows of a turn with the weights of their choices. */
static void add_routed(struct compute *c, struct comm_trade *t, const struct expert_work *own, const struct turn *turn)
{
    struct expert_inbox *in = &c->inbox;
    int32_t *choices = own->routed->choices + turn->first;
    for (int64_t i = 0; i < turn->n; i++)
        in->weights_out[i] = choices[i] < 0 ? 0 : own->routed->weights[choices[i]];
    trade_send(t, in->weights_out, (size_t)turn->n * sizeof *in->weights_out);
    trade_send(t, choices, (size_t)turn->n * sizeof *choices);
    trade_receive(t, in->routed.weights, (size_t)turn->arrived * sizeof *in->routed.weights);
    trade_receive(t, in->routed.choices, (size_t)turn->arrived * sizeof *choices);
    add_rows(c, t, trade_send, own->rows, turn->first, turn->n, c->m->hidden);
    add_rows(c, t, trade_receive, in->rows, 0, turn->arrived, c->m->hidden);
}

/* Here, the weight of a row is the one with its number. */
static void number_choices(struct compute *c, const struct turn *turn)
{
    int32_t *choices = c->inbox.routed.choices;
    for (int64_t i = 0; i < turn->arrived; i++)
        choices[i] = choices[i] < 0 ? -1 : (int32_t)i;
}

typedef void work_one(struct compute *c, const struct expert_work *w, int64_t number, int64_t expert, bool flag);

static void work_owned(struct compute *c, const struct expert_work *w, int64_t number, work_one *work, bool flag)
{
    const int64_t first = c->owners->number * nowned(c);
    for (int64_t e = first; e < first + nowned(c); e++)
        work(c, w, number, e, flag);
}

/* For the rows of `from`: with its dropout, and into its gradients. */
static void serve(struct compute *c, int64_t number, const struct turn *turn, work_one *work, bool flag)
{
    const struct expert_work w = work_of_inbox(c);
    const float dropout = c->dropout;
    struct kern_rng_offset *rng_offset = c->on.rng_offset;
    float *grads = c->grads;
    if (turn->arrived == 0)
        return;
    number_choices(c, turn);
    c->dropout = c->inbox.head->dropout;
    c->on.rng_offset = &c->inbox.head->rng_offset;
    c->grads = c->owners->grads[turn->from];
    work_owned(c, &w, number, work, flag);
    c->dropout = dropout;
    c->on.rng_offset = rng_offset;
    c->grads = grads;
}

/* True if no backward pass follows from the activations of this forward pass. */
static bool forgets(const struct compute *c, int64_t number, bool wants_y)
{
    return wants_y && (c->blocks[number].recomputed || number < compute_first_layer(c->l));
}

static void forward_turn(struct compute *c, int64_t number, const struct turn *turn, bool wants_y)
{
    const struct expert_work own = experts_work(c, number), served = work_of_inbox(c);
    struct comm_trade there = { 0 }, back = { 0 };
    if (turn->n)
        experts_gather(c, own.routed, turn->first, turn->n, c->h, compute_row(c, own.rows, turn->first, c->m->hidden));
    add_routed(c, &there, &own, turn);
    run_trade(c, &there, turn);
    serve(c, number, turn, experts_forward_one, wants_y);
    if (wants_y) {
        add_rows(c, &back, trade_send, served.rows, 0, turn->arrived, c->m->hidden);
        add_rows(c, &back, trade_receive, own.rows, turn->first, turn->n, c->m->hidden);
    }
    if (!forgets(c, number, wants_y)) {
        add_kept(c, &back, trade_send, number, &served, 0, turn->arrived);
        add_kept(c, &back, trade_receive, number, &own, turn->first, turn->n);
    }
    run_trade(c, &back, &(struct turn){ .to = turn->from, .from = turn->to });
}

static bool gates_train(const struct compute *c, const struct layer *layer)
{
    bool any = false;
    for (int64_t e = 0; e < layer->nexperts && !any; e++)
        any = linear_trains(c, &layer->experts[e].gate) || linear_trains(c, &layer->experts[e].up);
    return any;
}

/* Of the weights of this rank's choices. */
static void take_dweights(struct compute *c, const struct expert_work *own, const struct turn *turn)
{
    const int32_t *choices = own->routed->choices + turn->first;
    for (int64_t i = 0; i < turn->n; i++)
        if (choices[i] >= 0)
            own->dweights[choices[i]] = c->inbox.weights_out[i];
}

/* Gradients of outputs go there, and those of inputs come back. */
static void backward_turn(struct compute *c, int64_t number, const struct turn *turn, bool through)
{
    const struct expert_work own = experts_work(c, number), served = work_of_inbox(c);
    struct expert_inbox *in = &c->inbox;
    struct comm_trade there = { 0 }, back = { 0 };
    const int64_t d = c->m->hidden;
    if (turn->n)
        experts_gather(c, own.routed, turn->first, turn->n, c->dx, compute_row(c, own.rows, turn->first, d));
    add_routed(c, &there, &own, turn);
    add_kept(c, &there, trade_send, number, &own, turn->first, turn->n);
    add_kept(c, &there, trade_receive, number, &served, 0, turn->arrived);
    if (gates_train(c, &c->l->layers[number])) {
        if (turn->n)
            experts_gather(c, own.routed, turn->first, turn->n, c->h, in->x_out);
        add_rows(c, &there, trade_send, in->x_out, 0, turn->n, d);
        add_rows(c, &there, trade_receive, in->x, 0, turn->arrived, d);
    }
    run_trade(c, &there, turn);
    serve(c, number, turn, experts_backward_one, through);
    if (through) {
        add_rows(c, &back, trade_send, served.rows, 0, turn->arrived, d);
        add_rows(c, &back, trade_receive, own.rows, turn->first, turn->n, d);
    }
    trade_send(&back, in->dweights, (size_t)turn->arrived * sizeof *in->dweights);
    trade_receive(&back, in->weights_out, (size_t)turn->n * sizeof *in->weights_out);
    run_trade(c, &back, &(struct turn){ .to = turn->from, .from = turn->to });
    take_dweights(c, &own, turn);
}

/* Elements of a row that travel for a block, in both directions. */
static int64_t row_nelem(const struct compute *c, int64_t number)
{
    const int64_t d = c->m->hidden, kept = 2 * c->m->expert_inner + 2 * c->expert_rank;
    const bool backward = number >= compute_first_layer(c->l), recomputed = backward && c->blocks[number].recomputed;
    return 2 * d + (forgets(c, number, true) ? 0 : kept) + (recomputed ? d + kept : 0) +
           (backward ? 2 * d + kept + (gates_train(c, &c->l->layers[number]) ? d : 0) : 0);
}

uint64_t exchange_micro_nbytes(const struct compute *c, int64_t ntok)
{
    uint64_t sum = 0;
    for (int64_t i = 0; c->nowners > 1 && i < c->m->nlayer; i++)
        if (c->l->layers[i].experts)
            sum += (uint64_t)(row_nelem(c, i) * kern_dtype_bytes(block_dtype(c->l, i)));
    return sum * (uint64_t)(ntok * c->m->top_k * (c->nowners - 1) / c->nowners);
}

typedef void turn_work(struct compute *c, int64_t number, const struct turn *turn, bool flag);

static void each_turn(struct compute *c, int64_t number, bool mine, turn_work *work, bool flag)
{
    for (uint32_t k = 1; k < c->owners->n; k++) {
        const struct turn turn = meet(c, number, k, mine);
        work(c, number, &turn, flag);
    }
}

void exchange_forward(struct compute *c, int64_t number, bool wants_y)
{
    const struct expert_work own = experts_work(c, number);
    work_owned(c, &own, number, experts_forward_one, wants_y);
    each_turn(c, number, true, forward_turn, wants_y);
}

void exchange_backward(struct compute *c, int64_t number, bool through)
{
    const struct expert_work own = experts_work(c, number);
    work_owned(c, &own, number, experts_backward_one, through);
    each_turn(c, number, true, backward_turn, through);
}

void exchange_serve_forward(struct compute *c, int64_t number, bool wants_y)
{
    each_turn(c, number, false, forward_turn, wants_y);
}

void exchange_serve_backward(struct compute *c, int64_t number, bool through)
{
    each_turn(c, number, false, backward_turn, through);
}
