/* SPDX-License-Identifier: Apache-2.0 */
/* A micro-batch from token ids to loss and gradients: embedding, blocks, last norm, head; then backward. */
#include "model/compute_impl.h"
#include "model/compute_parts.h"
#include "model/expert_exchange.h"

int compute_enter(const struct compute_hook *hook, uint32_t group, struct fsdpck_error *err)
{
    return hook ? hook->before_group(hook->ctx, group, err) : 0;
}

void compute_leave(const struct compute_hook *hook, uint32_t group)
{
    if (hook)
        hook->after_group(hook->ctx, group);
}

static int grads_ready(const struct compute_hook *hook, uint32_t group, struct fsdpck_error *err)
{
    return hook && hook->grads_ready ? hook->grads_ready(hook->ctx, group, err) : 0;
}

int compute_enter_end(const struct compute *c, const struct compute_hook *hook, struct fsdpck_error *err)
{
    int rc = layout_is_tied(c->whole) ? compute_enter(hook, 0, err) : 0;
    return rc ? rc : compute_enter(hook, c->l->ngroups - 1, err);
}

void compute_leave_end(const struct compute *c, const struct compute_hook *hook)
{
    compute_leave(hook, c->l->ngroups - 1);
    if (layout_is_tied(c->whole))
        compute_leave(hook, 0);
}

bool compute_trains_first(const struct layout *l)
{
    return l->embed.r || l->params[l->embed.w].trainable || (l->flux2 && l->flux2->first_trains);
}

/* True if the backward pass of the first group reads its parameters. */
static bool reads_first(const struct layout *l)
{
    return l->embed.r || (l->flux2 && l->flux2->first_trains);
}

int64_t compute_first_layer(const struct layout *l)
{
    return compute_trains_first(l) ? 0 : l->first_trained_layer;
}

/* The uses of a block by the backward pass; returns the next one. */
static uint32_t block_uses(const struct layout *l, int64_t block, uint32_t n, struct compute_use *uses)
{
    const uint32_t first = layout_first_group(l, block), last = layout_last_group(l, block);
    for (uint32_t g = first; g < last && layout_recomputes_first(l, block); g++, n++)
        if (uses)
            uses[n] = (struct compute_use){ .group = g };
    for (uint32_t g = last + 1; g-- > first; n++)
        if (uses)
            uses[n] = (struct compute_use){ .group = g, .completes = true };
    return n;
}

uint32_t compute_uses(const struct layout *l, uint32_t *nforward, struct compute_use *uses)
{
    uint32_t n = 0;
#define USE(number, complete) (uses ? uses[n] = (struct compute_use){ number, complete }, 0 : 0, n++)
    for (uint32_t i = 0; i + 1 < l->ngroups; i++)
        USE(i, false);
    if (layout_is_tied(l))
        USE(0, false);
    USE(l->ngroups - 1, true);
    *nforward = n;
    for (int64_t i = (int64_t)l->nblocks - 1; i >= compute_first_layer(l); i--)
        n = block_uses(l, i, n, uses);
    if (reads_first(l))
        USE(0, false); /* they are complete at the end, whether its parameters are read or not */
#undef USE
    return n;
}

/* Micro-batches of computations that share what is gathered; one alone, as a rule. */
struct together {
    struct compute *const *all; /* (n) */
    size_t n;
    const struct compute *some; /* the first */
};

#define EACH(t, c) (struct compute *const *at_ = (t)->all, *c; at_ < (t)->all + (t)->n && (c = *at_, true); at_++)

/* This rank's experts are there for the tokens of other ranks. They are in the last group of their block, which its
 * backward pass enters once. */
static void serve_group(struct compute *c, uint32_t group, bool backward)
{
    if (!c->owners || layout_is_end(c->l, group))
        return;
    const int64_t number = layout_block_of(c->l, group);
    if (!c->l->layers[number].experts || group != layout_last_group(c->l, number))
        return;
    c->dtype = layout_dtype(c->l, group);
    if (backward)
        block_serve_backward(c, number);
    else
        exchange_serve_forward(c, number, true);
}

static int exchanges_status(const struct together *t, struct fsdpck_error *err)
{
    int rc = 0;
    for
        EACH(t, c)
    if (!rc)
        rc = exchange_status(c, err);
    return rc;
}

static void forward_group(struct compute *c, int64_t number, uint32_t group)
{
    c->group = group;
    if (c->serves)
        serve_group(c, group, false);
    else
        replay(c, REPLAY_FORWARD, number, c->parts->block);
}

static int forward_block(const struct together *t, const struct compute_hook *hook, int64_t number,
                         struct fsdpck_error *err)
{
    int rc = 0;
    for (uint32_t g = layout_first_group(t->some->l, number); g <= layout_last_group(t->some->l, number); g++) {
        rc = compute_enter(hook, g, err);
        if (rc)
            break;
        for
            EACH(t, c)
        forward_group(c, number, g);
        compute_leave(hook, g);
    }
    return rc ? rc : exchanges_status(t, err);
}

/* Runs up to the last norm's output, in c->h. Leaves the end's groups entered. */
static int forward(const struct together *t, const struct compute_hook *hook, struct fsdpck_error *err)
{
    int rc = 0;
    for
        EACH(t, c)
    if (!rc && !c->serves)
        rc = c->parts->send(c, err);
    if (!rc)
        rc = compute_enter(hook, 0, err);
    if (!rc) {
        for
            EACH(t, c)
        if (!c->serves)
            c->parts->first(c);
        compute_leave(hook, 0);
    }
    for (int64_t i = 0; i < t->some->m->nlayer && !rc; i++)
        rc = forward_block(t, hook, i, err);
    if (!rc)
        rc = compute_enter_end(t->some, hook, err);
    for
        EACH(t, c)
    if (!rc && !c->serves && c->parts->norm)
        c->parts->norm(c);
    return rc;
}

/* The work of the backward pass of a block on one of its groups. */
enum turn { TURN_RECOMPUTE, TURN_BOTH, TURN_BACKWARD };

static void run_turn(struct compute *c, int64_t number, uint32_t group, enum turn turn)
{
    if (number < compute_first_layer(c->l))
        return;
    c->group = group;
    if (c->serves) {
        serve_group(c, group, true);
        return;
    }
    if (turn != TURN_BACKWARD && c->blocks[number].recomputed)
        replay(c, REPLAY_RECOMPUTED, number, c->parts->recompute);
    if (turn != TURN_RECOMPUTE)
        replay(c, REPLAY_BACKWARD, number, c->parts->block_backward);
}

static int take_turn(const struct together *t, const struct compute_hook *hook, int64_t number, uint32_t group,
                     enum turn turn, struct fsdpck_error *err)
{
    int rc = compute_enter(hook, group, err);
    if (rc)
        return rc;
    for
        EACH(t, c)
    run_turn(c, number, group, turn);
    compute_leave(hook, group);
    rc = exchanges_status(t, err);
    return rc || turn == TURN_RECOMPUTE ? rc : grads_ready(hook, group, err);
}

/* As block_uses() lists them. */
static int backward_block(const struct together *t, const struct compute_hook *hook, int64_t number,
                          struct fsdpck_error *err)
{
    const struct layout *l = t->some->whole;
    const uint32_t first = layout_first_group(l, number), last = layout_last_group(l, number);
    int rc = 0;
    for (uint32_t g = first; g < last && layout_recomputes_first(l, number) && !rc; g++)
        rc = take_turn(t, hook, number, g, TURN_RECOMPUTE, err);
    for (uint32_t g = last + 1; g-- > first && !rc;)
        rc = take_turn(t, hook, number, g, g == last ? TURN_BOTH : TURN_BACKWARD, err);
    return rc;
}

/* Starts from the gradients of the last norm's outputs. */
static int backward(const struct together *t, const struct compute_hook *hook, struct fsdpck_error *err)
{
    const struct layout *whole = t->some->whole;
    const bool embed = compute_trains_first(whole);
    for
        EACH(t, c)
    if (!c->serves)
        c->parts->norm_backward(c);
    compute_leave_end(t->some, hook);
    int rc = grads_ready(hook, whole->ngroups - 1, err);
    for (int64_t i = t->some->m->nlayer - 1; i >= compute_first_layer(whole) && !rc; i--)
        rc = backward_block(t, hook, i, err);
    if (!rc && reads_first(whole))
        rc = compute_enter(hook, 0, err);
    for
        EACH(t, c)
    if (!rc && !c->serves && compute_trains_first(c->l))
        c->parts->first_backward(c);
    if (!rc && reads_first(whole))
        compute_leave(hook, 0);
    return !rc && embed ? grads_ready(hook, 0, err) : rc;
}

int compute_sync(struct compute *c, struct fsdpck_error *err)
{
    char message[KERN_MESSAGE_BYTES];
    int status = c->device->stream_sync(c->stream, message);
    if (status == KERN_OK)
        return 0;
    return fsdpck_error_set(err, status == KERN_ERR_MEMORY ? FSDPCK_ERR_NOMEM : FSDPCK_ERR_IO, NULL,
                            "a kernel failed on device '%s' %d: %s", c->device->name, c->index, message);
}

/* Enqueues the copy of the loss to the host. */
static void send_loss(struct compute *c)
{
    c->device->memory->copy(c->stream, c->loss_back, c->loss_sum, sizeof *c->loss_back);
}

static int take_loss(struct compute *c, double *loss, struct fsdpck_error *err)
{
    int rc = compute_sync(c, err);
    if (!rc)
        *loss = *c->loss_back;
    return rc;
}

static int enqueue_loss(struct compute *c, bool wants_gradient, struct fsdpck_error *err)
{
    int rc = c->parts->loss(c, wants_gradient, err);
    if (!rc)
        send_loss(c);
    return rc;
}

/* After everything that was enqueued. */
static int take_results(struct compute *c, double *loss, struct fsdpck_error *err)
{
    int rc = take_loss(c, loss, err);
    return rc || !c->parts->take ? rc : c->parts->take(c, err);
}

static int run_together(const struct together *t, const struct compute_hook *hook, double *losses,
                        struct fsdpck_error *err)
{
    for
        EACH(t, c)
    if (!c->serves)
        balance_begin(c);
    int rc = forward(t, hook, err);
    if (rc)
        return rc;
    for
        EACH(t, c)
    if (!rc && !c->serves)
        rc = enqueue_loss(c, true, err);
    if (!rc)
        rc = backward(t, hook, err);
    for (size_t i = 0; i < t->n && !rc; i++) {
        losses[i] = 0;
        if (!t->all[i]->serves)
            rc = take_results(t->all[i], &losses[i], err);
    }
    return rc;
}

int compute_micros(struct compute *const *all, size_t n, const struct compute_hook *hook, double *losses,
                   struct fsdpck_error *err)
{
    return run_together(&(struct together){ all, n, all[0] }, hook, losses, err);
}

int compute_micro(struct compute *c, const struct compute_hook *hook, double *loss, struct fsdpck_error *err)
{
    return compute_micros(&c, 1, hook, loss, err);
}

/* The same for a use of the computation. */
static int serve_others(struct compute *c, uint32_t use, struct fsdpck_error *err)
{
    serve_group(c, c->uses[use].group, use >= c->nforward);
    return exchange_status(c, err);
}

int compute_skip(struct compute *c, const struct compute_hook *hook, struct fsdpck_error *err)
{
    int rc = 0;
    for (uint32_t u = 0; u < c->nuses && !rc; u++) {
        rc = compute_enter(hook, c->uses[u].group, err);
        if (!rc)
            rc = serve_others(c, u, err);
        compute_leave(hook, c->uses[u].group);
        if (!rc && c->uses[u].completes)
            rc = grads_ready(hook, c->uses[u].group, err);
    }
    return !rc && compute_trains_first(c->whole) ? grads_ready(hook, 0, err) : rc;
}

static int forward_loss(struct compute *c, const struct compute_hook *hook, double *loss, struct fsdpck_error *err)
{
    int rc = forward(&(struct together){ &c, 1, c }, hook, err);
    if (rc)
        return rc;
    rc = enqueue_loss(c, false, err);
    if (rc)
        return rc;
    compute_leave_end(c, hook);
    return take_results(c, loss, err);
}

int compute_loss(struct compute *c, const struct compute_hook *hook, double *loss, struct fsdpck_error *err)
{
    const float dropout = c->dropout;
    c->dropout = 0;
    int rc = forward_loss(c, hook, loss, err);
    c->dropout = dropout;
    return rc;
}

static int skip_forward(struct compute *c, const struct compute_hook *hook, bool serves, struct fsdpck_error *err)
{
    int rc = 0;
    for (uint32_t u = 0; u < c->nforward && !rc; u++) {
        rc = compute_enter(hook, c->uses[u].group, err);
        if (!rc && serves)
            rc = serve_others(c, u, err);
        compute_leave(hook, c->uses[u].group);
    }
    return rc;
}

int compute_loss_skip(struct compute *c, const struct compute_hook *hook, struct fsdpck_error *err)
{
    return skip_forward(c, hook, true, err);
}

int compute_decode_skip(struct compute *c, const struct compute_hook *hook, struct fsdpck_error *err)
{
    return skip_forward(c, hook, false, err);
}

int compute_states(struct compute *c, const struct compute_hook *hook, struct fsdpck_error *err)
{
    int rc = forward(&(struct together){ &c, 1, c }, hook, err);
    if (rc)
        return rc;
    compute_leave_end(c, hook);
    return compute_sync(c, err);
}

/* Allocates a buffer for the logits: training does not run at this time. */
int compute_logits(struct compute *c, const struct compute_hook *hook, float *logits, struct fsdpck_error *err)
{
    const struct linear *head = &c->l->head;
    const struct bundle bundle = bundle_of(c, &head, 1);
    const int64_t ntok = c->batch.ntok;
    const size_t one = (size_t)head->nout * sizeof *logits, nbytes = (size_t)compute_whole_units(c, ntok) * one;
    const struct kern_location location = { .kind = KERN_MEMORY_DEVICE, .index = c->index };
    char message[KERN_MESSAGE_BYTES];
    struct kern_buffer buffer;
    int rc = c->device->memory->alloc(location, nbytes, &buffer, message) == KERN_OK
                 ? 0
                 : fsdpck_error_set(err, FSDPCK_ERR_NOMEM, NULL, "logits: %s", message);
    if (!rc)
        rc = forward(&(struct together){ &c, 1, c }, hook, err);
    if (!rc) {
        const struct kern_mat to = { buffer.data, head->nout, KERN_F32 };
        bundle_forward(c, &bundle, c->h, c->ds, NULL, &to);
        compute_leave_end(c, hook);
        c->device->memory->copy(c->stream, logits, buffer.data, (size_t)ntok * one);
        rc = compute_sync(c, err);
    }
    c->device->memory->free(&buffer);
    return rc;
}
