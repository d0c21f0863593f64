/* SPDX-License-Identifier: Apache-2.0 */
/* A decoder of text, part by part: embedding, blocks, last norm, head. */
#include "model/compute_impl.h"
#include "model/compute_parts.h"
#include "model/decoder_alloc.h"

static int start(struct compute *c, struct fsdpck_error *err)
{
    return compute_send_rope_tables(c, c->ntok, err);
}

static int send(struct compute *c, struct fsdpck_error *err)
{
    (void)err;
    compute_send_batch(c);
    return 0;
}

/* The buffer for a group's output, which is the input x of the next group. */
static void *output_of(const struct compute *c, uint32_t group, void *x)
{
    return layout_dtype(c->l, group) == layout_dtype(c->l, group + 1) ? x : c->h;
}

/* The next block may have another dtype. */
static void hand_on(struct compute *c, uint32_t group, void *x)
{
    const int64_t d = c->m->hidden;
    const struct kern_mat to = { x, d, layout_dtype(c->l, group + 1) };
    if (to.dtype != c->dtype)
        c->device->ops->cast(c->stream, to, cmat(c, c->h, d), c->batch.ntok, d);
}

static void forward_block(struct compute *c, int64_t number)
{
    void *next = number + 1 < c->m->nlayer ? c->blocks[number + 1].x : c->x_last;
    const uint32_t last = layout_last_group(c->l, number);
    c->dtype = layout_dtype(c->l, last);
    block_forward(c, number, output_of(c, last, next));
    if (c->group == last)
        hand_on(c, last, next);
}

static void recompute_block(struct compute *c, int64_t number)
{
    c->dtype = block_dtype(c->l, number);
    block_forward(c, number, NULL);
}

static void backward_block(struct compute *c, int64_t number)
{
    const uint32_t last = layout_last_group(c->l, number);
    if (c->group == last)
        compute_go_over(c, last + 1, last, c->dx, c->dh);
    c->dtype = layout_dtype(c->l, last);
    block_backward(c, number);
}

/* Up to the first block. */
static void forward_embedding(struct compute *c)
{
    c->dtype = layout_dtype(c->l, 0);
    embed_forward(c, output_of(c, 0, c->blocks[0].x));
    hand_on(c, 0, c->blocks[0].x);
}

static void forward_norm(struct compute *c)
{
    c->dtype = layout_dtype(c->l, c->l->ngroups - 1);
    norm_forward(c, c->l->norm, 1, c->m->hidden, c->x_last, c->h, c->rstd_last);
}

static struct kern_head head_of(struct compute *c)
{
    const struct linear *head = &c->l->head;
    struct batch *b = &c->batch;
    struct kern_head h = { .ntok = b->ntok,
                           .d = head->nin,
                           .nvocab = head->nout,
                           .h = cmat(c, c->h, head->nin),
                           .w = value_of(c, head->w),
                           .nrow = b->nrow,
                           .rows = c->on.rows,
                           .target = c->on.row_targets,
                           .grad_scale = b->grad_scale,
                           .weights = c->weighing.on ? c->on.row_weights : NULL,
                           .loss = c->loss,
                           .dh = mat(c, c->dh, head->nin),
                           .dw = grad_of(c, head->w),
                           .compute = c->dtype,
                           .output = c->output,
                           .chunk = head_chunk(c),
                           .panel = head_panel(c),
                           .scratch = c->head };
    if (!head->r)
        return h;
    h.lora = (struct kern_head_lora){ .r = head->r,
                                      .scale = head->scale,
                                      .a = value_of(c, head->a),
                                      .b = value_of(c, head->b),
                                      .da = grad_of(c, head->a),
                                      .db = grad_of(c, head->b),
                                      .dropout = linear_dropout(c, head) };
    if (c->dropout > 0) { /* dropout's random numbers are per token: use all rows, some without a target */
        h.nrow = b->ntok;
        h.rows = NULL;
        h.target = c->on.targets;
        h.weights = c->weighing.on ? c->on.weights : NULL;
    }
    return h;
}

/* dh and dw are not set, so the head computes no gradient. */
static struct kern_head loss_head_of(struct compute *c)
{
    struct kern_head head = head_of(c);
    head.dh.data = NULL;
    head.dw = NULL;
    return head;
}

/* The losses of rows, on which the weights of their tokens depend. */
struct weighing {
    struct compute *c;
    const struct kern_head *head;
    int rc;
    struct fsdpck_error *err;
};

static void weigh_rows(void *ctx, int64_t row, int64_t n)
{
    struct weighing *w = ctx;
    struct compute *c = w->c;
    if (!w->rc)
        w->rc = compute_take_losses(c, w->head, row, n, w->err);
    if (w->rc)
        return;
    c->weighing.weigh(c->weighing.ctx, &c->batch);
    compute_send_weights(c);
}

/* Weights that depend on losses of several chunks take a head of their own. */
static int weigh_all(struct weighing *w)
{
    const struct kern_head head = loss_head_of(w->c);
    kern_head_run(w->c->device, w->c->stream, &head);
    w->head = &head;
    weigh_rows(w, 0, head.nrow);
    return w->rc;
}

static bool is_one_chunk(const struct kern_head *head)
{
    return head->nrow <= (head->chunk ? head->chunk : kern_head_chunk(head->nvocab));
}

static int loss_and_gradient(struct compute *c, struct fsdpck_error *err)
{
    struct kern_head head = head_of(c);
    struct weighing w = { .c = c, .head = &head, .err = err };
    const bool weighs = c->weighing.on && c->weighing.weigh;
    if (weighs && (c->weighing.by_token || is_one_chunk(&head))) {
        head.weigh = weigh_rows;
        head.ctx = &w;
    } else if (weighs && weigh_all(&w)) {
        return w.rc;
    }
    kern_head_run(c->device, c->stream, &head);
    c->device->ops->sum(c->stream, c->loss_sum, c->loss, head.nrow);
    balance_end(c);
    return w.rc;
}

static int loss(struct compute *c, bool wants_gradient, struct fsdpck_error *err)
{
    if (wants_gradient)
        return loss_and_gradient(c, err);
    const struct kern_head head = loss_head_of(c);
    kern_head_run(c->device, c->stream, &head);
    c->device->ops->sum(c->stream, c->loss_sum, c->loss, head.nrow);
    return 0;
}

static int take(struct compute *c, struct fsdpck_error *err)
{
    if (!c->weighing.on)
        return 0;
    const struct kern_head head = head_of(c);
    return compute_take_losses(c, &head, 0, head.nrow, err);
}

/* From c->dh, the gradient of the last norm's output. */
static void backward_norm(struct compute *c)
{
    if (compute_first_layer(c->l) < c->m->nlayer || grad_of(c, c->l->norm))
        norm_backward(c, c->l->norm, 1, c->m->hidden, c->x_last, c->rstd_last, c->dh, NULL, c->dx);
}

static void backward_embedding(struct compute *c)
{
    compute_go_over(c, 1, 0, c->dx, c->dh);
    embed_backward(c, c->dx);
}

const struct compute_parts decoder_parts = { .alloc = decoder_alloc,
                                             .alloc_host = decoder_alloc_host,
                                             .start = start,
                                             .send = send,
                                             .first = forward_embedding,
                                             .block = forward_block,
                                             .norm = forward_norm,
                                             .loss = loss,
                                             .take = take,
                                             .norm_backward = backward_norm,
                                             .recompute = recompute_block,
                                             .block_backward = backward_block,
                                             .first_backward = backward_embedding };
