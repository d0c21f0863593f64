/* SPDX-License-Identifier: Apache-2.0 */
/* Counts the work of each operation, as probe.c measures it. */
#include "price/paper.h"

/* Operations take no context argument. */
static _Thread_local struct paper *active;

static double bytes(int64_t nrow, int64_t ncol, enum kern_dtype dtype)
{
    return (double)nrow * (double)ncol * (double)kern_dtype_bytes(dtype);
}

static void add(enum kern_dtype dtype, enum rates_typed kind, double amount)
{
    active->work.typed[dtype][kind] += amount;
}

static void call(void)
{
    active->work.plain[RATES_CALLS]++;
}

static int64_t min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The time of an operation falls with 1/side towards that of wide products: a product counts in part as a thin one. */
static void product(enum kern_dtype a, enum kern_dtype b, bool gradient, int64_t m, int64_t n, int64_t k)
{
    const enum kern_dtype dtype = a == KERN_BF16 && b == KERN_BF16 ? KERN_BF16 : KERN_F32;
    const int64_t side = min(min(m, n), k);
    const double flops = 2.0 * (double)m * (double)n * (double)k,
                 thin = side > RATES_THIN ? RATES_THIN / (double)side : 1;
    add(dtype, gradient ? RATES_GRADIENT : RATES_PRODUCT, flops * (1 - thin));
    add(dtype, gradient ? RATES_GRADIENT_THIN : RATES_PRODUCT_THIN, flops * thin);
}

static void count_gemm(struct kern_stream *s, const struct kern_gemm *g)
{
    (void)s;
    call();
    if (g->k)
        product(g->a.dtype, g->b.dtype, g->trans_a, g->m, g->n, g->k);
    for (int i = 0; i < g->nlowrank; i++)
        product(g->lowrank[i].s.dtype, g->lowrank[i].b.dtype, false, g->lowrank[i].nrow, g->n, g->lowrank[i].r);
}

static void count_norm(struct kern_stream *s, const struct kern_rmsnorm *a)
{
    (void)s;
    call();
    add(a->x.dtype, RATES_NORM, 2 * bytes(a->nrow, a->ngroup * a->ncol, a->x.dtype));
}

static void count_norm_grad(struct kern_stream *s, const struct kern_rmsnorm_grad *a)
{
    (void)s;
    call();
    add(a->x.dtype, RATES_NORM_GRAD, (a->add.data ? 4 : 3) * bytes(a->nrow, a->ngroup * a->ncol, a->x.dtype));
}

static void count_rope(struct kern_stream *s, const struct kern_rope_apply *a)
{
    (void)s;
    call();
    add(a->x.dtype, RATES_ROPE, 2 * bytes(a->nrow, a->nhead * a->rotary, a->x.dtype));
}

static void count_table(struct kern_stream *s, struct kern_attention_shape *a)
{
    (void)s, (void)a;
    call();
}

/* Pairs of a query and a key that it sees. */
static double pairs(const struct kern_attention_shape *a)
{
    double sum = 0;
    for (int64_t d = 0; d < a->ndoc; d++) {
        const double n = (double)(a->cu_seqlens[d + 1] - a->cu_seqlens[d]),
                     seen = a->window > 0 && (double)a->window < n ? (double)a->window : n;
        sum += a->full ? n * n : seen * (seen + 1) / 2 + (n - seen) * seen;
    }
    return sum;
}

static void attention(const struct kern_attention_shape *a, enum kern_dtype dtype, enum rates_typed kind,
                      enum rates_typed rows, double nproducts)
{
    call();
    add(dtype, kind, nproducts * 2 * (double)a->head_dim * (double)a->nhead * pairs(a));
    add(dtype, rows, nproducts * bytes(a->ntok, (a->nhead + a->nkv) * a->head_dim, dtype));
}

static void count_attention(struct kern_stream *s, const struct kern_attention *a)
{
    (void)s;
    attention(&a->shape, a->q.dtype, RATES_ATTENTION, RATES_ATTENTION_ROWS, 2);
}

static void count_attention_grad(struct kern_stream *s, const struct kern_attention_grad *a)
{
    (void)s;
    attention(&a->shape, a->q.dtype, RATES_ATTENTION_GRAD, RATES_ATTENTION_GRAD_ROWS, 5);
}

static void count_swiglu(struct kern_stream *s, struct kern_mat y, struct kern_cmat g, struct kern_cmat u, int64_t m,
                         int64_t n)
{
    (void)s, (void)g, (void)u;
    call();
    add(y.dtype, RATES_SWIGLU, 3 * bytes(m, n, y.dtype));
}

static void count_swiglu_grad(struct kern_stream *s, const struct kern_swiglu_grad *a)
{
    (void)s;
    call();
    add(a->dy.dtype, RATES_SWIGLU_GRAD, (a->y.data ? 6 : 5) * bytes(a->nrow, a->ncol, a->dy.dtype));
}

static void elements(enum kern_dtype dtype, double nbytes)
{
    call();
    add(dtype, RATES_ELEMENTS, nbytes);
}

static void count_cast(struct kern_stream *s, struct kern_mat d, struct kern_cmat x, int64_t m, int64_t n)
{
    (void)s;
    elements(d.dtype, bytes(m, n, d.dtype) + bytes(m, n, x.dtype));
}

static void count_add(struct kern_stream *s, struct kern_mat d, struct kern_cmat a, struct kern_cmat b, int64_t m,
                      int64_t n)
{
    (void)s;
    elements(d.dtype, bytes(m, n, d.dtype) + bytes(m, n, a.dtype) + bytes(m, n, b.dtype));
}

static void count_scale(struct kern_stream *s, struct kern_mat d, struct kern_cmat x, float f, int64_t m, int64_t n)
{
    (void)f;
    count_cast(s, d, x, m, n);
}

static void count_sum_rows(struct kern_stream *s, float *d, struct kern_cmat x, int64_t m, int64_t n, float *scratch)
{
    (void)s, (void)d, (void)scratch;
    elements(x.dtype, bytes(m, n, x.dtype));
}

static void count_sum(struct kern_stream *s, double *d, const float *x, int64_t n)
{
    (void)s, (void)d, (void)x;
    elements(KERN_F32, bytes(n, 1, KERN_F32));
}

static void rows(enum kern_dtype dtype, double nbytes)
{
    call();
    add(dtype, RATES_ROWS, nbytes);
}

static void count_gather(struct kern_stream *s, struct kern_mat d, struct kern_cmat x, const int32_t *i, int64_t m,
                         int64_t n, int64_t k)
{
    (void)s, (void)i, (void)k;
    rows(x.dtype, bytes(m, n, d.dtype) + bytes(m, n, x.dtype));
}

static void count_scatter_add(struct kern_stream *s, struct kern_mat d, struct kern_cmat x, const int32_t *i, int64_t m,
                              int64_t n, int64_t k)
{
    (void)s, (void)i, (void)k;
    rows(x.dtype, 2 * bytes(m, n, d.dtype) + bytes(m, n, x.dtype));
}

static void count_loss(struct kern_stream *s, const struct kern_cross_entropy *a)
{
    (void)s;
    call();
    add(a->logits.dtype, RATES_LOSS, (a->dlogits.data ? 2 : 1) * bytes(a->nrow, a->ncol, a->logits.dtype));
}

/* in: A takes part, whose side is the input; else B. gradient: over rows. */
static void lora(const struct kern_lora *a, bool in, bool gradient)
{
    const struct kern_cmat x = in ? a->x : a->dy;
    const int64_t width = in ? a->nin : a->nout;
    call();
    for (int i = 0; i < a->nsegments; i++) {
        const struct kern_lora_segment *g = &a->segments[i];
        if (gradient)
            product(x.dtype, x.dtype, true, g->r, width, g->nrow);
        else
            product(x.dtype, in ? g->a.dtype : g->b.dtype, false, g->nrow, g->r, width);
    }
}

static void count_lora_down(struct kern_stream *s, const struct kern_lora *a)
{
    (void)s;
    lora(a, true, false);
}

static void count_lora_up_grad(struct kern_stream *s, const struct kern_lora *a)
{
    (void)s;
    lora(a, false, false);
}

static void count_lora_grad_a(struct kern_stream *s, const struct kern_lora *a)
{
    (void)s;
    lora(a, true, true);
}

static void count_lora_grad_b(struct kern_stream *s, const struct kern_lora *a)
{
    (void)s;
    lora(a, false, true);
}

static void count_dora_norm(struct kern_stream *s, const struct kern_dora_norm *a)
{
    (void)s;
    call();
    if (a->r)
        product(KERN_F32, KERN_F32, false, a->nrow, a->ncol, a->r);
    add(a->w.dtype, RATES_ELEMENTS, bytes(a->nrow, a->ncol, a->w.dtype));
}

static void count_dora_scale(struct kern_stream *s, const struct kern_dora_scale *a)
{
    (void)s;
    elements(a->y.dtype, (a->add.data ? 3 : 2) * bytes(a->nrow, a->ncol, a->y.dtype));
}

static void count_dora_grad(struct kern_stream *s, const struct kern_dora_grad *a)
{
    (void)s;
    elements(a->dy.dtype, 2 * bytes(a->nrow, a->ncol, a->dy.dtype));
}

static void count_uniform(struct kern_stream *s, float *d, int64_t n, struct kern_philox rng, uint64_t i, float low,
                          float high)
{
    (void)s, (void)d, (void)rng, (void)i, (void)low, (void)high;
    elements(KERN_F32, bytes(n, 1, KERN_F32));
}

static void count_dropout(struct kern_stream *s, struct kern_mat y, struct kern_cmat x, int64_t m, int64_t n,
                          const struct kern_dropout *a)
{
    (void)a;
    count_cast(s, y, x, m, n);
}

/* Reads a quarter or half of what it writes. */
static void count_dequantize(struct kern_stream *s, const struct kern_dequantize *a)
{
    (void)s;
    elements(a->to.dtype, 1.5 * bytes(a->nrow, a->ncol, a->to.dtype));
}

static void count_gemv(struct kern_stream *s, const struct kern_gemv *a)
{
    (void)s;
    call();
    for (int i = 0; i < a->nparts; i++)
        add(a->parts[i].w.dtype, RATES_ELEMENTS, bytes(a->parts[i].n, a->k, a->parts[i].w.dtype));
}

static void count_attention_one(struct kern_stream *s, const struct kern_attention_one *a)
{
    (void)s;
    elements(a->k.dtype, 2 * bytes(a->nkeys, a->nkv * a->head_dim, a->k.dtype));
}

/* Reads p, m, v and the gradient, writes the first three; and the rounded values. */
static void count_adamw(struct kern_stream *s, const struct kern_adamw *a)
{
    (void)s;
    call();
    for (size_t i = 0; i < a->nranges; i++)
        active->work.plain[RATES_ADAMW] += (a->ranges[i].rounded ? 30.0 : 28.0) * (double)a->ranges[i].nelem;
}

static void count_sum_squares(struct kern_stream *s, double *d, const struct kern_rows *x, size_t n)
{
    (void)s, (void)d;
    call();
    for (size_t i = 0; i < n; i++)
        active->work.plain[RATES_SQUARES] += bytes(x[i].nrow, x[i].ncol, x[i].x.dtype);
}

/* All experts are chosen alike. */
static void count_route(struct kern_stream *s, const struct kern_route *r)
{
    const int64_t nexperts = r->router.nexperts, nchoices = r->ntok * r->router.top_k;
    int64_t before = 0;
    (void)s;
    elements(KERN_F32, bytes(r->ntok, nexperts, KERN_F32));
    r->starts[0] = 0;
    for (int64_t e = 0; e < nexperts; e++) {
        const int64_t after = nchoices * (e + 1) / nexperts;
        r->starts[e + 1] = r->starts[e] + (after - before + r->unit - 1) / r->unit * r->unit;
        before = after;
    }
}

static void count_route_grad(struct kern_stream *s, const struct kern_route_grad *g)
{
    (void)s;
    elements(KERN_F32, 2 * bytes(g->ntok, g->router.nexperts, KERN_F32));
}

static void count_expert_load(struct kern_stream *s, const struct kern_expert_load *l)
{
    (void)s;
    elements(KERN_F32, bytes(l->ntok, l->nexperts, KERN_F32));
}

static void count_expert_balance(struct kern_stream *s, const struct kern_expert_balance *b)
{
    (void)s, (void)b;
    call();
}

static void count_expert_rows(struct kern_stream *s, const struct kern_expert_rows *r)
{
    (void)s;
    rows(r->src.dtype, 2 * bytes(r->nrow, r->ncol, r->src.dtype));
}

static void count_expert_sum(struct kern_stream *s, const struct kern_expert_sum *a)
{
    (void)s;
    rows(a->src.dtype, (double)(a->top_k + (a->add.data ? 2 : 1)) * bytes(a->ntok, a->ncol, a->src.dtype));
}

static void count_expert_act(struct kern_stream *s, const struct kern_expert_act *a)
{
    count_swiglu(s, a->y, a->gate, a->up, a->nrow, a->ncol);
}

static void count_expert_act_grad(struct kern_stream *s, const struct kern_expert_act_grad *a)
{
    (void)s;
    call();
    add(a->dy.dtype, RATES_SWIGLU_GRAD, (a->y.data ? 6 : 5) * bytes(a->nrow, a->ncol, a->dy.dtype));
}

static void count_expert_bias(struct kern_stream *s, const struct kern_expert_bias *b)
{
    (void)s;
    elements(b->y.dtype, 2 * bytes(b->nrow, b->ncol, b->y.dtype));
}

static void count_expert_bias_grad(struct kern_stream *s, const struct kern_expert_bias_grad *g)
{
    (void)s;
    elements(g->dy.dtype, (g->dbias ? 2 : 1) * bytes(g->nrow, g->ncol, g->dy.dtype));
}

static void count_expert_gate(struct kern_stream *s, const struct kern_expert_gate *g)
{
    (void)s;
    elements(KERN_F32, 2 * bytes(g->ntok, 1, KERN_F32));
}

static void count_expert_gate_grad(struct kern_stream *s, const struct kern_expert_gate_grad *g)
{
    (void)s;
    elements(KERN_F32, 3 * bytes(g->ntok, 1, KERN_F32));
}

static void count_modulate(struct kern_stream *s, const struct kern_modulate *m)
{
    (void)s;
    call();
    add(m->x.dtype, RATES_NORM, 2 * bytes(m->nrow, m->ncol, m->x.dtype));
}

static void count_modulate_grad(struct kern_stream *s, const struct kern_modulate_grad *g)
{
    (void)s;
    call();
    add(g->x.dtype, RATES_NORM_GRAD, (g->add.data ? 4 : 3) * bytes(g->nrow, g->ncol, g->x.dtype));
}

static void count_gate(struct kern_stream *s, const struct kern_gate *g)
{
    (void)s;
    elements(g->y.dtype, (g->add.data ? 3 : 2) * bytes(g->nrow, g->ncol, g->y.dtype));
}

static void count_silu(struct kern_stream *s, struct kern_mat y, struct kern_cmat x, int64_t m, int64_t n)
{
    count_cast(s, y, x, m, n);
}

static void count_square_error(struct kern_stream *s, const struct kern_square_error *e)
{
    (void)s;
    elements(e->x.dtype, (e->dx.data ? 3 : 2) * bytes(e->nrow, e->ncol, e->x.dtype));
}

static void count_copy(struct kern_stream *s, void *dst, const void *src, size_t nbytes)
{
    (void)s, (void)dst, (void)src;
    active->work.plain[RATES_MEMORY] += 2.0 * (double)nbytes;
}

static void count_zero(struct kern_stream *s, void *dst, size_t nbytes)
{
    (void)s, (void)dst;
    active->work.plain[RATES_MEMORY] += (double)nbytes;
}

void paper_open(const struct kern_device *real, struct paper *out)
{
    *out = (struct paper){ .device = *real, .memory = *real->memory };
    out->ops = (struct kern_ops){ .gemm = count_gemm,
                                  .rmsnorm = count_norm,
                                  .rmsnorm_grad = count_norm_grad,
                                  .rope = count_rope,
                                  .attention_table_bytes = real->ops->attention_table_bytes,
                                  .attention_table = count_table,
                                  .attention_scratch = real->ops->attention_scratch,
                                  .attention_grad_scratch = real->ops->attention_grad_scratch,
                                  .attention = count_attention,
                                  .attention_grad = count_attention_grad,
                                  .swiglu = count_swiglu,
                                  .swiglu_grad = count_swiglu_grad,
                                  .cast = count_cast,
                                  .add = count_add,
                                  .scale = count_scale,
                                  .sum_rows = count_sum_rows,
                                  .sum = count_sum,
                                  .gather_rows = count_gather,
                                  .scatter_rows = count_gather,
                                  .scatter_add = count_scatter_add,
                                  .gather_cols = count_gather,
                                  .scatter_add_cols = count_scatter_add,
                                  .cross_entropy = count_loss,
                                  .lora_down = count_lora_down,
                                  .lora_up_grad = count_lora_up_grad,
                                  .lora_grad_a = count_lora_grad_a,
                                  .lora_grad_b = count_lora_grad_b,
                                  .dora_norm = count_dora_norm,
                                  .dora_scale = count_dora_scale,
                                  .dora_grad = count_dora_grad,
                                  .uniform = count_uniform,
                                  .dropout = count_dropout,
                                  .dequantize = count_dequantize,
                                  .gemv = count_gemv,
                                  .attention_one = count_attention_one,
                                  .adamw = count_adamw,
                                  .sum_squares = count_sum_squares };
    out->experts = (struct kern_expert_ops){ .route = count_route,
                                             .route_grad = count_route_grad,
                                             .load = count_expert_load,
                                             .balance = count_expert_balance,
                                             .rows = count_expert_rows,
                                             .sum = count_expert_sum,
                                             .act = count_expert_act,
                                             .act_grad = count_expert_act_grad,
                                             .bias = count_expert_bias,
                                             .bias_grad = count_expert_bias_grad,
                                             .gate = count_expert_gate,
                                             .gate_grad = count_expert_gate_grad };
    out->images = (struct kern_image_ops){ .modulate = count_modulate,
                                           .modulate_grad = count_modulate_grad,
                                           .gate = count_gate,
                                           .silu = count_silu,
                                           .square_error = count_square_error };
    out->memory.copy = count_copy;
    out->memory.zero = count_zero;
    out->device.ops = &out->ops;
    out->device.experts = &out->experts;
    out->device.images = &out->images;
    out->device.memory = &out->memory;
    out->device.record = NULL; /* every call is counted */
    active = out;
}

void paper_close(struct paper *p)
{
    active = active == p ? NULL : active;
}

/* A thread copies, whatever the others do. */
static bool is_shared(int kind)
{
    return kind == RATES_ADAMW || kind == RATES_SQUARES;
}

double work_seconds(const struct work *work, const struct rates *rates, double nthreads)
{
    const double share = rates->cores ? (double)rates->cores / nthreads : 1;
    double sum = 0;
    for (int i = 0; i < 2 * RATES_NTYPED; i++)
        sum +=
            share * work->typed[i / RATES_NTYPED][i % RATES_NTYPED] / rates->typed[i / RATES_NTYPED][i % RATES_NTYPED];
    for (int i = 0; i < RATES_NPLAIN; i++)
        sum += (is_shared(i) ? share : 1) * work->plain[i] / rates->plain[i];
    return sum;
}
