/* SPDX-License-Identifier: Apache-2.0 */
/* A forward pass without a backward pass: stores only keys and values. A prompt uses the matrix products of training. A
 * single token uses matrix-vector products; the low-rank products of its adapters remain in fp32. */
#include "model/decode.h"

#include <stdlib.h>
#include <string.h>

#include "model/bump.h"
#include "model/decode_impl.h"

static int64_t max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static void alloc_all(struct decode *d, struct bump *v)
{
    const struct model *m = d->c.m;
    const enum kern_dtype act = d->c.widest;
    int64_t n = d->room, nq = m->nhead * m->head_dim, nkv = m->nkv * m->head_dim, r = compute_largest_rank(d->c.l),
            bounds[2] = { 0, n };
    if (d->kv.pool) {
        d->k = bump_acts(v, act, n * nkv);
        d->v = bump_acts(v, act, n * nkv);
    } else {
        void *piece = bump_alloc(v, kv_layout(&d->c, d->most, d->k_at, d->v_at));
        if (d->kv.list)
            d->kv.list[0] = piece;
    }
    d->x = bump_acts(v, act, n * m->hidden);
    d->x2 = bump_acts(v, act, n * m->hidden);
    d->h = bump_acts(v, act, n * m->hidden);
    d->q = bump_acts(v, act, n * nq);
    d->o = bump_acts(v, act, n * nq);
    d->gate = bump_acts(
        v, act,
        max(max(n * m->inner, n * m->shared_inner), experts_one(&d->c, n) * m->expert_inner * (m->gpt_oss ? 2 : 1)));
    d->up = bump_acts(v, act, max(max(n * m->inner, n * m->shared_inner), experts_one(&d->c, n) * m->expert_inner));
    d->s = bump_acts(v, act, experts_one(&d->c, n) * r);
    routed_alloc(&d->c, v, n, &d->routed);
    experts_alloc(&d->c, v, n, false);
    d->s_one = bump_floats(v, r);
    d->logits = bump_floats(v, m->nvocab);
    d->c.a_joint = bump_acts(v, act, r * m->hidden);
    compute_alloc_weights(&d->c, v);
    compute_alloc_pairs(&d->c, v, false);
    compute_alloc_dora(&d->c, v, n, false);
    d->c.s_embed = bump_acts(v, act, n * d->c.l->embed.r);
    if (!d->kv.pool) {
        d->c.cosines = bump_floats(v, d->most * m->rope.dim / 2);
        d->c.sines = bump_floats(v, d->most * m->rope.dim / 2);
    }
    d->c.on.ids = bump_ints(v, n);
    d->c.on.positions = bump_ints(v, n);
    const struct kern_attention_shape shape = { .ntok = n,
                                                .nhead = m->nhead,
                                                .nkv = m->nkv,
                                                .head_dim = m->head_dim,
                                                .cu_seqlens = bounds,
                                                .ndoc = 1,
                                                .scale = 1 };
    d->c.attention = bump_alloc(v, d->c.device->ops->attention_scratch(d->c.stream, &shape));
    d->c.batch.documents.data = bump_alloc(v, d->c.device->ops->attention_table_bytes(d->c.stream, &shape));
}

static void alloc_host(struct decode *d, struct bump *v)
{
    d->c.batch.ids = bump_ints(v, d->room);
    d->c.batch.positions = bump_ints(v, d->room);
    d->seen = bump_floats(v, d->c.m->nvocab);
}

static void view(struct decode *d, const struct compute *from, int64_t prompt, int64_t most)
{
    d->c = *from;
    d->c.dropout = 0;
    d->c.batch = (struct batch){ 0 };
    d->c.on = (struct batch_copy){ 0 };
    d->room = prompt;
    d->most = max(prompt, most);
}

struct decode_sizes decode_count(const struct compute *from, int64_t prompt, int64_t most)
{
    struct decode d = { 0 };
    struct bump device = { 0 }, host = { 0 };
    view(&d, from, prompt, most);
    alloc_all(&d, &device);
    alloc_host(&d, &host);
    return (struct decode_sizes){ .device_nbytes = device.at, .host_nbytes = host.at };
}

/* Counts, allocates, then divides the memory. */
static int allocate_at(struct decode *d, struct kern_location location, void (*cut)(struct decode *d, struct bump *v),
                       struct kern_buffer *out, struct fsdpck_error *err)
{
    char message[KERN_MESSAGE_BYTES] = "";
    struct bump v = { 0 };
    cut(d, &v);
    if (d->c.device->memory->alloc(location, v.at, out, message) != KERN_OK)
        return fsdpck_error_set(err, FSDPCK_ERR_NOMEM, NULL,
                                "no memory for the keys and values of %lld tokens (%zu bytes): %s", (long long)d->most,
                                v.at, message);
    v = (struct bump){ .base = out->data };
    cut(d, &v);
    return 0;
}

static int make_lists(struct decode *d, struct fsdpck_error *err)
{
    const struct model *m = d->c.m;
    const size_t n = (size_t)m->nlayer;
    d->routed.starts = calloc((size_t)m->nexperts + 1, sizeof *d->routed.starts);
    if (!d->kv.pool) {
        d->k_at = calloc(n, sizeof *d->k_at);
        d->v_at = calloc(n, sizeof *d->v_at);
        d->kv.list = calloc(1, sizeof *d->kv.list);
        d->kv.n = d->kv.capacity = 1;
    }
    return d->routed.starts && (d->kv.pool || (d->k_at && d->v_at && d->kv.list))
               ? 0
               : fsdpck_error_nomem(err, n * sizeof *d->k_at);
}

static int allocate(struct decode *d, void *memory, struct fsdpck_error *err)
{
    const struct kern_location own = { .kind = KERN_MEMORY_DEVICE, .index = d->c.index, .huge_pages = true },
                               pinned = { .kind = KERN_MEMORY_PINNED, .index = d->c.index };
    int rc = make_lists(d, err);
    if (!rc && memory) {
        struct bump v = { .base = memory };
        alloc_all(d, &v);
    } else if (!rc) {
        rc = allocate_at(d, own, alloc_all, &d->memory, err);
    }
    if (!rc)
        rc = allocate_at(d, pinned, alloc_host, &d->host, err);
    if (rc || d->kv.pool)
        return rc;
    return compute_send_rope_tables(&d->c, d->most, err);
}

/* pool NULL: the cache is one piece. */
static int make(const struct compute *from, int64_t prompt, int64_t most, struct kv_pool *pool, void *memory,
                struct decode **out, struct fsdpck_error *err)
{
    struct decode *d = calloc(1, sizeof *d);
    *out = NULL;
    if (!d)
        return fsdpck_error_nomem(err, sizeof *d);
    view(d, from, prompt, most);
    d->kv = (struct kv){ .pool = pool, .nrow = pool ? KV_PAGE : d->most };
    if (pool)
        kv_pool_tables(pool, &d->c.cosines, &d->c.sines);
    int rc = allocate(d, memory, err);
    if (rc)
        decode_free(d);
    else
        *out = d;
    return rc;
}

int decode_new(const struct compute *from, int64_t prompt, int64_t most, void *memory, struct decode **out,
               struct fsdpck_error *err)
{
    return make(from, prompt, most, NULL, memory, out, err);
}

int decode_new_paged(const struct compute *from, int64_t prompt, struct kv_pool *pool, struct decode **out,
                     struct fsdpck_error *err)
{
    return make(from, prompt, kv_pool_most(pool), pool, NULL, out, err);
}

void decode_free(struct decode *d)
{
    if (!d)
        return;
    d->c.device->memory->free(&d->memory);
    d->c.device->memory->free(&d->host);
    kv_free(&d->kv);
    free(d->k_at);
    free(d->v_at);
    free(d->routed.starts);
    free(d);
}

int decode_go_on(struct decode *d, const struct kv *from, struct fsdpck_error *err)
{
    return kv_share(&d->kv, from, err);
}

const struct kv *decode_kv(const struct decode *d)
{
    return &d->kv;
}

int64_t decode_ntok(const struct decode *d)
{
    return d->kv.ntok;
}

void decode_rewind(struct decode *d, int64_t n)
{
    d->kv.ntok = n < d->kv.ntok ? n : d->kv.ntok;
}

/* Computes S of each layer's adapter in fp32: (Σ r), concatenated. */
static void down_one(struct decode *d, const struct linear *const *layers, int n, const void *x)
{
    struct compute *c = &d->c;
    struct kern_gemv_part parts[BUNDLE];
    int used = 0;
    int64_t at = 0;
    for (int i = 0; i < n; i++) {
        const struct linear *lin = layers[i];
        if (lin->r)
            parts[used++] = (struct kern_gemv_part){
                .n = lin->r, .w = pair_a(c, lin), .alpha = lin->scale, .y = { d->s_one + at, lin->r, KERN_F32 }
            };
        at += lin->r;
    }
    const struct kern_gemv g = { .k = layers[0]->nin, .x = cmat(c, x, layers[0]->nin), .parts = parts, .nparts = used };
    if (used)
        c->device->ops->gemv(c->stream, &g);
}

void decode_gemv(struct decode *d, const struct linear *const *layers, int n, const void *x, const void *add,
                 const struct kern_mat *y, const struct decode_gemv *like, struct decode_gemv *out)
{
    struct compute *c = &d->c;
    int64_t at = 0, copied = 0;
    down_one(d, layers, n, x);
    for (int64_t i = 0, room = 0; i < n; room += layers[i]->nin * layers[i]->nout, i++) {
        const struct linear *lin = layers[i];
        const bool dora = lin->magnitude >= 0; /* dora_scale() adds after scaling */
        out->bias[i] = bias_of(c, lin);
        out->sum[i] = add ? cmat(c, add, lin->nout) : no_cmat;
        out->parts[i] = (struct kern_gemv_part){ .n = lin->nout,
                                                 .w = like ? like->parts[i].w : weight_of(c, lin, room),
                                                 .alpha = 1,
                                                 .r = lin->r,
                                                 .s = d->s_one + at,
                                                 .b = pair_b(c, lin, copied),
                                                 .bias = dora ? no_cmat : out->bias[i],
                                                 .add = dora ? no_cmat : out->sum[i],
                                                 .y = y[i] };
        at += lin->r;
        copied += lin->npairs ? lin->nout * lin->r : 0;
    }
    out->g =
        (struct kern_gemv){ .k = layers[0]->nin, .x = cmat(c, x, layers[0]->nin), .parts = out->parts, .nparts = n };
}

/* y[i] = x·Wᵀ + bias + adapter (+ add), for layers that share x and all tokens of the batch. */
static void linear(struct decode *d, const struct linear *const *layers, int n, const void *x, const void *add,
                   const struct kern_mat *y)
{
    struct compute *c = &d->c;
    if (c->batch.ntok > 1 || layers[0]->fused) { /* a matrix-vector product wants (nout, nin) */
        const struct bundle b = bundle_of(c, layers, n);
        bundle_forward(c, &b, x, d->s, add, y);
        return;
    }
    struct decode_gemv call;
    decode_gemv(d, layers, n, x, add, y, NULL, &call);
    c->device->ops->gemv(c->stream, &call.g);
    for (int i = 0; i < n; i++) {
        if (layers[i]->magnitude >= 0 && d->kv.ntok == 0) /* otherwise the prompt has computed them */
            dora_norms(c, layers[i]);
        if (layers[i]->magnitude >= 0)
            dora_scale(c, layers[i], 0, kern_const(y[i]), call.bias[i], call.sum[i], y[i]);
    }
}

void decode_turn(struct compute *c, void *x, int64_t nhead)
{
    const struct kern_rope_apply rope = { .nrow = c->batch.ntok,
                                          .nhead = nhead,
                                          .dim = c->m->head_dim,
                                          .rotary = c->m->rope.dim,
                                          .x = mat(c, x, nhead * c->m->head_dim),
                                          .cosines = c->cosines,
                                          .sines = c->sines,
                                          .positions = c->on.positions };
    c->device->ops->rope(c->stream, &rope);
}

static void run_gate_up(struct decode *d, const struct layer *l)
{
    struct compute *c = &d->c;
    const int64_t inner = c->m->inner;
    const struct kern_mat y[BUNDLE] = { mat(c, d->gate, inner), mat(c, d->up, inner) };
    linear(d, (const struct linear *[]){ &l->mlp.gate, &l->mlp.up }, 2, d->h, NULL, y);
    c->device->ops->swiglu(c->stream, y[0], kern_const(y[0]), kern_const(y[1]), c->batch.ntok, inner);
}

static void run_down(struct decode *d, const struct layer *l)
{
    const struct kern_mat x = mat(&d->c, d->x, d->c.m->hidden);
    linear(d, (const struct linear *[]){ &l->mlp.down }, 1, d->gate, d->x2, &x);
}

void decode_expert(struct decode *d, const struct layer *l, int64_t expert, int64_t first, int64_t n)
{
    struct compute *c = &d->c;
    const struct mlp *x = &l->experts[expert];
    const int64_t ntok = c->batch.ntok, inner = c->m->expert_inner;
    void *rows = compute_row(c, c->expert_rows, first, c->m->hidden);
    const struct kern_mat y[BUNDLE] = { mat(c, d->gate, x->gate.nout), mat(c, d->up, inner) },
                          to = mat(c, rows, c->m->hidden);
    void *act = x->joined ? d->up : d->gate;
    experts_gather(c, &d->routed, first, n, d->h, rows);
    c->batch.ntok = n;
    linear(d, (const struct linear *[]){ &x->gate, &x->up }, mlp_ngates(x), rows, NULL, y);
    experts_act(c, &d->routed, first, n, d->gate, x->joined ? NULL : d->up, act);
    linear(d, (const struct linear *[]){ &x->down }, 1, act, NULL, &to);
    experts_bias(c, l, expert, first, n, &d->routed, rows);
    c->batch.ntok = ntok;
}

/* x = x2 + the output of the expert that every token shares. */
static void run_shared(struct decode *d, const struct layer *l)
{
    struct compute *c = &d->c;
    const int64_t inner = c->m->shared_inner;
    const struct kern_mat y[BUNDLE] = { mat(c, d->gate, inner), mat(c, d->up, inner) },
                          logits = { d->routed.logits, 1, KERN_F32 }, x = mat(c, d->x, c->m->hidden);
    if (l->weighs) {
        linear(d, (const struct linear *[]){ &l->shared_gate }, 1, d->h, NULL, &logits);
        shared_weigh(c, c->batch.ntok, d->routed.logits, d->routed.weights);
    }
    linear(d, (const struct linear *[]){ &l->shared.gate, &l->shared.up }, 2, d->h, NULL, y);
    shared_act(c, l->weighs ? d->routed.weights : NULL, d->gate, d->up, d->gate);
    linear(d, (const struct linear *[]){ &l->shared.down }, 1, d->gate, d->x2, &x);
}

static void run_experts(struct decode *d, const struct layer *l)
{
    const int64_t *starts = d->routed.starts;
    if (l->shares)
        run_shared(d, l);
    experts_route(&d->c, l, d->h, &d->routed);
    for (int64_t e = 0; e < l->nexperts; e++)
        if (starts[e + 1] > starts[e])
            decode_expert(d, l, e, starts[e], starts[e + 1] - starts[e]);
    experts_sum(&d->c, &d->routed, l->shares ? d->x : d->x2, d->x);
}

/* d->o: the output of attention. */
static void run_attention(struct decode *d, int64_t number)
{
    struct compute *c = &d->c;
    const struct model *m = c->m;
    const struct layer *l = &c->l->layers[number];
    compute_go_over(c, c->group - 1, c->group, d->x, d->h);
    const int64_t nq = m->nhead * m->head_dim, nkv = m->nkv * m->head_dim;
    const struct decode_new_rows at = decode_new_rows(d, number);
    const struct kern_mat qkv[BUNDLE] = { mat(c, d->q, nq), mat(c, at.k, nkv), mat(c, at.v, nkv) };
    norm_forward(c, l->norm1, 1, m->hidden, d->x, d->h, NULL);
    linear(d, (const struct linear *[]){ &l->q, &l->k, &l->v }, 3, d->h, NULL, qkv);
    if (m->qk_norm) {
        norm_forward(c, l->q_norm, m->nhead, m->head_dim, d->q, d->q, NULL);
        norm_forward(c, l->k_norm, m->nkv, m->head_dim, at.k, at.k, NULL);
    }
    decode_turn(c, d->q, m->nhead);
    decode_turn(c, at.k, m->nkv);
    decode_attend(d, number);
}

static void run_o(struct decode *d, const struct layer *l)
{
    const struct kern_mat x2 = mat(&d->c, d->x2, d->c.m->hidden);
    linear(d, (const struct linear *[]){ &l->o }, 1, d->o, d->x, &x2);
}

/* The parts of a block that are in c->group. */
static void run_parts(struct decode *d, int64_t number)
{
    struct compute *c = &d->c;
    const struct layer *l = &c->l->layers[number];
    if (has_part(c, number, PART_QKV))
        run_attention(d, number);
    if (has_part(c, number, PART_O))
        run_o(d, l);
    if (has_part(c, number, PART_GATE_UP)) {
        norm_forward(c, l->norm2, 1, c->m->hidden, d->x2, d->h, NULL);
        if (l->experts)
            run_experts(d, l);
        else
            run_gate_up(d, l);
    }
    if (has_part(c, number, PART_DOWN) && !l->experts)
        run_down(d, l);
}

static int run_block(struct decode *d, int64_t number, const struct compute_hook *hook, struct fsdpck_error *err)
{
    struct compute *c = &d->c;
    int rc = 0;
    for (c->group = layout_first_group(c->l, number); c->group <= layout_last_group(c->l, number) && !rc; c->group++) {
        rc = compute_enter(hook, c->group, err);
        if (rc)
            break;
        run_parts(d, number);
        compute_leave(hook, c->group);
    }
    return rc;
}

/* Computes the logits of the last token only. */
static void run_end(struct decode *d)
{
    struct compute *c = &d->c;
    const int64_t width = c->m->hidden;
    compute_go_over(c, c->l->ngroups - 2, c->l->ngroups - 1, d->x, d->h);
    const char *last = (const char *)d->x + (c->batch.ntok - 1) * width * kern_dtype_bytes(c->dtype);
    const struct kern_mat to = { d->logits, c->m->nvocab, KERN_F32 };
    c->batch.ntok = 1;
    norm_forward(c, c->l->norm, 1, width, last, d->h, NULL);
    linear(d, (const struct linear *[]){ &c->l->head }, 1, d->h, NULL, &to);
    c->device->memory->copy(c->stream, d->seen, d->logits, (size_t)c->m->nvocab * sizeof *d->seen);
}

/* Sets positions, and copies the batch to where kernels read it. */
void decode_send(struct decode *d)
{
    struct compute *c = &d->c;
    const size_t n = (size_t)c->batch.ntok;
    for (size_t i = 0; i < n; i++)
        c->batch.positions[i] = (int32_t)(d->kv.ntok + (int64_t)i);
    c->device->memory->copy(c->stream, c->on.ids, c->batch.ids, n * sizeof *c->on.ids);
    c->device->memory->copy(c->stream, c->on.positions, c->batch.positions, n * sizeof *c->on.positions);
    if (d->kv.ntok > 0)
        return;
    const int64_t bounds[2] = { 0, (int64_t)n };
    compute_send_documents(c, bounds, 1);
}

/* Runs the batch through the model, in the order of compute_logits(). */
static int run(struct decode *d, const struct compute_hook *hook, const float **logits, struct fsdpck_error *err)
{
    struct compute *c = &d->c;
    const int64_t n = c->batch.ntok;
    int rc = kv_extend(&d->kv, c, n, err);
    if (rc)
        return rc;
    decode_send(d);
    rc = compute_enter(hook, 0, err);
    if (!rc) {
        c->dtype = layout_dtype(c->l, 0);
        embed_forward(c, d->x);
        compute_leave(hook, 0);
    }
    for (int64_t i = 0; i < c->m->nlayer && !rc; i++)
        rc = run_block(d, i, hook, err);
    if (!rc)
        rc = compute_enter_end(c, hook, err);
    if (!rc) {
        run_end(d);
        compute_leave_end(c, hook);
        rc = compute_sync(c, err);
    }
    d->kv.ntok += rc ? 0 : n;
    *logits = d->seen;
    return rc;
}

int decode_prompt(struct decode *d, const struct compute_hook *hook, const int32_t *ids, int64_t n,
                  const float **logits, struct fsdpck_error *err)
{
    if (n < 1 || n > d->room)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "a prompt of %lld tokens; there is room for 1 to %lld",
                                (long long)n, (long long)d->room);
    kv_clear(&d->kv);
    d->c.batch.ntok = n;
    memcpy(d->c.batch.ids, ids, (size_t)n * sizeof *ids);
    return run(d, hook, logits, err);
}

int decode_token(struct decode *d, const struct compute_hook *hook, int32_t id, const float **logits,
                 struct fsdpck_error *err)
{
    if (d->kv.ntok < 1 || d->kv.ntok >= d->most)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "token %lld after a prompt; there is room for %lld",
                                (long long)d->kv.ntok + 1, (long long)d->most);
    d->c.batch.ntok = 1;
    d->c.batch.ids[0] = id;
    return run(d, hook, logits, err);
}
