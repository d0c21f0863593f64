/* SPDX-License-Identifier: Apache-2.0 */
/* A token of each of several sequences, layer by layer: a weight is read, and dequantized, once for all of them, and an
 * expert's for those that have chosen it. Each product is that of one sequence alone, and so are its bits. */
#include <stdlib.h>

#include "model/decode_impl.h"

struct many {
    struct decode *const *all; /* (n) */
    size_t n;
    struct decode_gemv *calls; /* (n) */
    struct kern_gemv *list;    /* (n) */
    struct decode **some;      /* (n) scratch: those of an expert */
};

/* Layers that share their input, of one sequence. */
struct stage {
    const struct linear *layers[BUNDLE];
    int n;
    const void *x, *add;
    struct kern_mat y[BUNDLE];
};
/* The layer, and in it the expert. */
struct where {
    int64_t number, expert;
};
typedef struct stage stage_fn(const struct decode *d, struct where at);

#define MANY_EACH(m, d) \
    for (struct decode *const *at_ = (m)->all, *d; at_ < (m)->all + (m)->n && (d = *at_, true); at_++)

static struct kern_mat row(const struct decode *d, void *data, int64_t n)
{
    return mat(&d->c, data, n);
}

static struct stage stage_qkv(const struct decode *d, struct where at)
{
    const struct model *m = d->c.m;
    const struct layer *l = &d->c.l->layers[at.number];
    const int64_t nkv = m->nkv * m->head_dim;
    const struct decode_new_rows new = decode_new_rows(d, at.number);
    return (struct stage){ .layers = { &l->q, &l->k, &l->v },
                           .n = 3,
                           .x = d->h,
                           .y = { row(d, d->q, m->nhead * m->head_dim), row(d, new.k, nkv), row(d, new.v, nkv) } };
}

static struct stage stage_o(const struct decode *d, struct where at)
{
    return (struct stage){ .layers = { &d->c.l->layers[at.number].o },
                           .n = 1,
                           .x = d->o,
                           .add = d->x,
                           .y = { row(d, d->x2, d->c.m->hidden) } };
}

static struct stage stage_gate_up(const struct decode *d, struct where at)
{
    const struct mlp *x = &d->c.l->layers[at.number].mlp;
    const int64_t inner = d->c.m->inner;
    return (struct stage){
        .layers = { &x->gate, &x->up }, .n = 2, .x = d->h, .y = { row(d, d->gate, inner), row(d, d->up, inner) }
    };
}

static struct stage stage_down(const struct decode *d, struct where at)
{
    return (struct stage){ .layers = { &d->c.l->layers[at.number].mlp.down },
                           .n = 1,
                           .x = d->gate,
                           .add = d->x2,
                           .y = { row(d, d->x, d->c.m->hidden) } };
}

static struct stage stage_head(const struct decode *d, struct where at)
{
    (void)at;
    return (struct stage){
        .layers = { &d->c.l->head }, .n = 1, .x = d->h, .y = { { d->logits, d->c.m->nvocab, KERN_F32 } }
    };
}

/* The rows of the sequence that an expert reads and replaces. */
static void *expert_rows(const struct decode *d, int64_t expert)
{
    return compute_row(&d->c, d->c.expert_rows, d->routed.starts[expert], d->c.m->hidden);
}

static struct stage stage_expert(const struct decode *d, struct where at)
{
    const struct mlp *x = &d->c.l->layers[at.number].experts[at.expert];
    return (struct stage){ .layers = { &x->gate, &x->up },
                           .n = mlp_ngates(x),
                           .x = expert_rows(d, at.expert),
                           .y = { row(d, d->gate, x->gate.nout), row(d, d->up, d->c.m->expert_inner) } };
}

static struct stage stage_expert_down(const struct decode *d, struct where at)
{
    const struct mlp *x = &d->c.l->layers[at.number].experts[at.expert];
    return (struct stage){ .layers = { &x->down },
                           .n = 1,
                           .x = x->joined ? d->up : d->gate,
                           .y = { row(d, expert_rows(d, at.expert), d->c.m->hidden) } };
}

static struct stage stage_shared_gate(const struct decode *d, struct where at)
{
    return (struct stage){ .layers = { &d->c.l->layers[at.number].shared_gate },
                           .n = 1,
                           .x = d->h,
                           .y = { { d->routed.logits, 1, KERN_F32 } } };
}

static struct stage stage_shared(const struct decode *d, struct where at)
{
    const struct mlp *x = &d->c.l->layers[at.number].shared;
    const int64_t inner = d->c.m->shared_inner;
    return (struct stage){
        .layers = { &x->gate, &x->up }, .n = 2, .x = d->h, .y = { row(d, d->gate, inner), row(d, d->up, inner) }
    };
}

static struct stage stage_shared_down(const struct decode *d, struct where at)
{
    return (struct stage){ .layers = { &d->c.l->layers[at.number].shared.down },
                           .n = 1,
                           .x = d->gate,
                           .add = d->x2,
                           .y = { row(d, d->x, d->c.m->hidden) } };
}

static void run_stage(const struct many *m, stage_fn *stage, struct where at)
{
    struct compute *c = &m->all[0]->c;
    for (size_t i = 0; i < m->n; i++) {
        const struct stage s = stage(m->all[i], at);
        decode_gemv(m->all[i], s.layers, s.n, s.x, s.add, s.y, i ? &m->calls[0] : NULL, &m->calls[i]);
        m->list[i] = m->calls[i].g;
    }
    m->list[0].also = m->list + 1;
    m->list[0].nalso = (int)m->n - 1;
    c->device->ops->gemv(c->stream, &m->list[0]);
}

/* ---- A block */

static void run_mlp(const struct many *m, int64_t number)
{
    run_stage(m, stage_gate_up, (struct where){ number, 0 });
    MANY_EACH (m, d) {
        const struct kern_mat gate = row(d, d->gate, d->c.m->inner);
        d->c.device->ops->swiglu(d->c.stream, gate, kern_const(gate), kern_const(row(d, d->up, d->c.m->inner)), 1,
                                 d->c.m->inner);
    }
    run_stage(m, stage_down, (struct where){ number, 0 });
}

/* Of one sequence, which has chosen it. */
static int64_t first_row(const struct decode *d, int64_t expert)
{
    return d->routed.starts[expert];
}

/* For the sequences of m, which have chosen it. */
static void run_expert(const struct many *m, struct where at)
{
    MANY_EACH (m, d)
        experts_gather(&d->c, &d->routed, first_row(d, at.expert), 1, d->h, expert_rows(d, at.expert));
    run_stage(m, stage_expert, at);
    MANY_EACH (m, d) {
        const bool joined = d->c.l->layers[at.number].experts[at.expert].joined;
        experts_act(&d->c, &d->routed, first_row(d, at.expert), 1, d->gate, joined ? NULL : d->up,
                    joined ? d->up : d->gate);
    }
    run_stage(m, stage_expert_down, at);
    MANY_EACH (m, d)
        experts_bias(&d->c, &d->c.l->layers[at.number], at.expert, first_row(d, at.expert), 1, &d->routed,
                     expert_rows(d, at.expert));
}

/* A matrix-vector product wants (nout, nin): a sequence goes through other experts by itself. */
static void choose_expert(const struct many *m, struct where at)
{
    struct many some = *m;
    some.all = m->some;
    some.n = 0;
    MANY_EACH (m, d) {
        const struct layer *l = &d->c.l->layers[at.number];
        const struct mlp *x = &l->experts[at.expert];
        if (d->routed.starts[at.expert + 1] == first_row(d, at.expert))
            continue;
        if (x->gate.fused || x->down.fused)
            decode_expert(d, l, at.expert, first_row(d, at.expert), 1);
        else
            m->some[some.n++] = d;
    }
    if (some.n)
        run_expert(&some, at);
}

static void run_shared(const struct many *m, int64_t number)
{
    const struct where at = { number, 0 };
    const bool weighs = m->all[0]->c.l->layers[number].weighs;
    if (weighs)
        run_stage(m, stage_shared_gate, at);
    MANY_EACH (m, d)
        if (weighs)
            shared_weigh(&d->c, 1, d->routed.logits, d->routed.weights);
    run_stage(m, stage_shared, at);
    MANY_EACH (m, d)
        shared_act(&d->c, weighs ? d->routed.weights : NULL, d->gate, d->up, d->gate);
    run_stage(m, stage_shared_down, at);
}

static void run_experts(const struct many *m, int64_t number)
{
    const struct layer *first = &m->all[0]->c.l->layers[number];
    if (first->shares)
        run_shared(m, number);
    MANY_EACH (m, d)
        experts_route(&d->c, &d->c.l->layers[number], d->h, &d->routed);
    for (int64_t e = 0; e < first->nexperts; e++)
        choose_expert(m, (struct where){ number, e });
    MANY_EACH (m, d)
        experts_sum(&d->c, &d->routed, first->shares ? d->x : d->x2, d->x);
}

static void run_block(const struct many *m, int64_t number)
{
    MANY_EACH (m, d) {
        const uint32_t group = layout_first_group(d->c.l, number);
        compute_go_over(&d->c, group - 1, group, d->x, d->h);
        norm_forward(&d->c, d->c.l->layers[number].norm1, 1, d->c.m->hidden, d->x, d->h, NULL);
    }
    run_stage(m, stage_qkv, (struct where){ number, 0 });
    MANY_EACH (m, d) {
        const struct layer *l = &d->c.l->layers[number];
        void *k = decode_new_rows(d, number).k;
        if (d->c.m->qk_norm) {
            norm_forward(&d->c, l->q_norm, d->c.m->nhead, d->c.m->head_dim, d->q, d->q, NULL);
            norm_forward(&d->c, l->k_norm, d->c.m->nkv, d->c.m->head_dim, k, k, NULL);
        }
        decode_turn(&d->c, d->q, d->c.m->nhead);
        decode_turn(&d->c, k, d->c.m->nkv);
        decode_attend(d, number);
    }
    run_stage(m, stage_o, (struct where){ number, 0 });
    MANY_EACH (m, d)
        norm_forward(&d->c, d->c.l->layers[number].norm2, 1, d->c.m->hidden, d->x2, d->h, NULL);
    if (m->all[0]->c.l->layers[number].experts)
        run_experts(m, number);
    else
        run_mlp(m, number);
}

static int run(const struct many *m, const int32_t *ids, struct fsdpck_error *err)
{
    const struct compute *first = &m->all[0]->c;
    for (size_t i = 0; i < m->n; i++) {
        struct decode *d = m->all[i];
        d->c.batch.ntok = 1;
        d->c.batch.ids[0] = ids[i];
        decode_send(d);
        d->c.dtype = layout_dtype(d->c.l, 0);
        embed_forward(&d->c, d->x);
    }
    for (int64_t i = 0; i < first->m->nlayer; i++)
        run_block(m, i);
    MANY_EACH (m, d) {
        compute_go_over(&d->c, d->c.l->ngroups - 2, d->c.l->ngroups - 1, d->x, d->h);
        norm_forward(&d->c, d->c.l->norm, 1, d->c.m->hidden, d->x, d->h, NULL);
    }
    run_stage(m, stage_head, (struct where){ 0 });
    MANY_EACH (m, d)
        d->c.device->memory->copy(d->c.stream, d->seen, d->logits, (size_t)d->c.m->nvocab * sizeof *d->seen);
    return compute_sync(&m->all[0]->c, err);
}

static int one_by_one(struct decode *const *all, size_t n, const int32_t *ids, const float **logits,
                      struct fsdpck_error *err)
{
    int rc = 0;
    for (size_t i = 0; i < n && !rc; i++)
        rc = decode_token(all[i], NULL, ids[i], &logits[i], err);
    return rc;
}

int decode_tokens(struct decode *const *all, size_t n, const int32_t *ids, const float **logits,
                  struct fsdpck_error *err)
{
    struct many m = { .all = all, .n = n };
    bool plain = n > 1;
    for (size_t i = 0; i < n && plain; i++)
        plain = all[i]->c.l->norms_nelem == 0 /* no DoRA */ && all[i]->kv.ntok >= 1 && all[i]->kv.ntok < all[i]->most;
    if (!plain)
        return one_by_one(all, n, ids, logits, err);
    m.calls = calloc(n, sizeof *m.calls);
    m.list = calloc(n, sizeof *m.list);
    m.some = calloc(n, sizeof *m.some);
    int rc = m.calls && m.list && m.some ? 0 : fsdpck_error_nomem(err, n * sizeof *m.calls);
    for (size_t i = 0; i < n && !rc; i++)
        rc = kv_extend(&all[i]->kv, &all[i]->c, 1, err);
    if (!rc)
        rc = run(&m, ids, err);
    for (size_t i = 0; i < n && !rc; i++) {
        all[i]->kv.ntok++;
        logits[i] = all[i]->seen;
    }
    free(m.calls);
    free(m.list);
    free(m.some);
    return rc;
}
