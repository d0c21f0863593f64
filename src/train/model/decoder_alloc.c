/* SPDX-License-Identifier: Apache-2.0 */
/* The buffers of a micro-batch of a decoder of text: one piece of memory. The same code computes its size and the
 * pointers into it (bump.h). */
#include "model/decoder_alloc.h"

#include "model/bump.h"
#include "model/compute_impl.h"

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static void alloc_mlp(const struct compute *c, struct bump *v, int64_t number, struct block *b)
{
    const struct layer *layer = &c->l->layers[number];
    const enum kern_dtype act = block_dtype(c->l, number);
    const bool sparse = layer->experts != NULL;
    const int64_t n = sparse ? experts_all(c, c->ntok) : c->ntok, inner = sparse ? c->m->expert_inner : c->m->inner,
                  r = c->expert_rank;
    if (sparse)
        routed_alloc(c, v, c->ntok, &b->routed);
    if (layer->shares)
        shared_alloc(c, v, layer, &b->shared);
    const bool joined = sparse && layer->experts[0].joined;
    b->gate = bump_acts(v, act, n * inner * (joined ? 2 : 1));
    b->up = bump_acts(v, act, joined ? 0 : n * inner);
    b->s_gate_up = bump_acts(v, act, n * (sparse ? r : layer->mlp.gate.r + layer->mlp.up.r));
    b->s_down = bump_acts(v, act, n * (sparse ? r : layer->mlp.down.r));
}

static void alloc_block(struct compute *c, struct bump *v, int64_t number)
{
    struct block *b = &c->blocks[number];
    const struct layer *layer = &c->l->layers[number];
    const enum kern_dtype act = block_dtype(c->l, number);
    const struct model *m = c->m;
    int64_t ntok = c->ntok, nq = ntok * m->nhead * m->head_dim, nkv = ntok * m->nkv * m->head_dim;
    b->x2 = bump_acts(v, act, ntok * m->hidden);
    b->rstd1 = bump_floats(v, ntok);
    b->rstd2 = bump_floats(v, ntok);
    b->q = bump_acts(v, act, nq);
    b->k = bump_acts(v, act, nkv);
    b->v = bump_acts(v, act, nkv);
    b->o = bump_acts(v, act, nq);
    b->q_raw = m->qk_norm ? bump_acts(v, act, nq) : b->q;
    b->k_raw = m->qk_norm ? bump_acts(v, act, nkv) : b->k;
    b->rstd_q = m->qk_norm ? bump_floats(v, ntok * m->nhead) : NULL;
    b->rstd_k = m->qk_norm ? bump_floats(v, ntok * m->nkv) : NULL;
    b->lse = bump_floats(v, ntok * m->nhead);
    b->s_qkv = bump_acts(v, act, ntok * (layer->q.r + layer->k.r + layer->v.r));
    b->s_o = bump_acts(v, act, ntok * layer->o.r);
    alloc_mlp(c, v, number, b);
}

/* Blocks below the lowest trained one do not keep x either: they alternate between two buffers. */
static void alloc_blocks(struct compute *c, struct bump *v)
{
    const int64_t nlayer = c->m->nlayer, first = compute_first_layer(c->l);
    for (int64_t i = 0; i < nlayer; i++) {
        const enum kern_dtype act = i < first ? c->widest : block_dtype(c->l, i);
        c->blocks[i].x = i >= 2 && i < first ? c->blocks[i - 2].x : bump_acts(v, act, c->ntok * c->m->hidden);
    }
    compute_alloc_blocks(c, v, alloc_block);
}

static void alloc_attention(struct compute *c, struct bump *v, size_t ndocs)
{
    const struct model *m = c->m;
    const struct kern_ops *ops = c->device->ops;
    const struct kern_attention_shape shape = {
        .ntok = c->ntok, .nhead = m->nhead, .nkv = m->nkv, .head_dim = m->head_dim, .ndoc = (int64_t)ndocs, .scale = 1
    };
    size_t forward = ops->attention_scratch(c->stream, &shape),
           backward = ops->attention_grad_scratch(c->stream, &shape);
    c->attention = bump_alloc(v, forward > backward ? forward : backward);
    c->batch.documents.data = bump_alloc(v, ops->attention_table_bytes(c->stream, &shape));
}

/* Partial sums of the gradients of biases: of a router and of experts. */
static int64_t experts_sums(const struct compute *c)
{
    const int64_t widest = most(c->m->nexperts, most(2 * c->m->expert_inner, c->m->hidden));
    return c->m->gpt_oss ? kern_sum_rows_scratch(experts_one(c, c->ntok), widest) : 0;
}

static void alloc_scratch(struct compute *c, struct bump *v, size_t ndocs)
{
    const struct model *m = c->m;
    static const int32_t some_row; /* any non-NULL pointer: size the scratch for gathered rows */
    int64_t largest = most(most(m->inner, m->hidden), m->nhead * m->head_dim);
    struct kern_head head = { .ntok = c->ntok,
                              .nrow = c->ntok,
                              .rows = &some_row,
                              .d = m->hidden,
                              .nvocab = m->nvocab,
                              .compute = layout_dtype(c->l, c->l->ngroups - 1),
                              .output = c->output,
                              .h.dtype = layout_dtype(c->l, c->l->ngroups - 1),
                              .dh.dtype = layout_dtype(c->l, c->l->ngroups - 1),
                              .lora = { .r = c->l->head.r },
                              .chunk = head_chunk(c) };
    alloc_attention(c, v, ndocs);
    c->head = bump_alloc(v, kern_head_scratch(&head));
    c->sums = bump_floats(v, most(kern_rmsnorm_scratch(c->ntok, largest), experts_sums(c)));
}

void decoder_alloc_host(struct compute *c, struct bump *v)
{
    struct batch *b = &c->batch;
    b->ids = bump_ints(v, c->ntok);
    b->positions = bump_ints(v, c->ntok);
    b->targets = bump_ints(v, c->ntok);
    b->rows = bump_ints(v, c->ntok);
    b->row_targets = bump_ints(v, c->ntok);
    b->weights = bump_floats(v, c->ntok);
    b->losses = bump_floats(v, c->ntok);
    b->row_weights = bump_floats(v, c->ntok);
    b->row_losses = bump_floats(v, c->ntok);
    b->cu_seqlens = bump_alloc(v, (c->ndocs + 1) * sizeof(int64_t));
    c->loss_back = bump_alloc(v, sizeof *c->loss_back);
    b->rng_offset = bump_alloc(v, sizeof *b->rng_offset);
}

void decoder_alloc(struct compute *c, struct bump *v)
{
    const struct model *m = c->m;
    int64_t n = c->ntok, nq = m->nhead * m->head_dim, nkv = m->nkv * m->head_dim, r = compute_largest_rank(c->l);
    c->on.ids = bump_ints(v, n);
    c->on.positions = bump_ints(v, n);
    c->on.targets = bump_ints(v, n);
    c->on.rows = bump_ints(v, n);
    c->on.row_targets = bump_ints(v, n);
    c->on.weights = bump_floats(v, n);
    c->on.row_weights = bump_floats(v, n);
    c->on.rng_offset = bump_alloc(v, sizeof *c->on.rng_offset);
    c->loss_sum = bump_alloc(v, sizeof *c->loss_sum);
    /* Before what depends on the adapters: computations that share memory have the same tables at the same place. */
    c->cosines = bump_floats(v, n * m->rope.dim / 2);
    c->sines = bump_floats(v, n * m->rope.dim / 2);
    alloc_blocks(c, v);
    c->x_last = bump_acts(v, c->widest, n * m->hidden);
    c->rstd_last = bump_floats(v, n);
    c->h = bump_acts(v, c->widest, n * m->hidden);
    c->dx = bump_acts(v, c->widest, n * m->hidden);
    c->dh = bump_acts(v, c->widest, n * m->hidden);
    c->dq = bump_acts(v, c->widest, n * nq);
    c->dk = bump_acts(v, c->widest, n * nkv);
    c->dv = bump_acts(v, c->widest, n * nkv);
    c->d_o = bump_acts(v, c->widest, n * nq);
    c->act =
        bump_acts(v, c->widest, most(most(n * m->inner, n * m->shared_inner), experts_one(c, n) * m->expert_inner));
    c->ds = bump_acts(v, c->widest, experts_one(c, n) * r);
    experts_alloc(c, v, n, true);
    balance_alloc(c, v, n);
    c->s_embed = bump_acts(v, c->widest, n * c->l->embed.r);
    c->a_joint = bump_acts(v, c->widest, r * m->hidden);
    c->da_joint = bump_floats(v, r * m->hidden);
    compute_alloc_weights(c, v);
    compute_alloc_pairs(c, v, true);
    compute_alloc_dora(c, v, n, true);
    c->loss = bump_floats(v, n);
    alloc_scratch(c, v, c->ndocs);
}
