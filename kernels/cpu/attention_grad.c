/* SPDX-License-Identifier: Apache-2.0 */
/* Attention's backward. A piece of work is a document, a stack of heads, and a part of the document's query blocks
 * (every nth). It loops over the spans of keys that each block sees, computes dq, and accumulates its own dk and dv in
 * scratch. These are then added in order. */
#include "cpu/attention.h"

#include "cpu/matmul.h"
#include "cpu/ops.h"

#include <math.h>
#include <string.h>

struct backward {
    const struct kern_attention_grad *g;
    struct cpu_packing p;
    int64_t npart;
    char *keys, *values; /* (nkv, nblock) panels in p.compute */
    float *dk, *dv;      /* (nkv · nstack, npart, nblock) panels */
};

/* State of a worker for one block of queries. */
struct query {
    unsigned worker;
    struct cpu_stack stack;
    const struct cpu_token_block *block;
    void *q, *d_o;            /* (stacked, head_dim) in p.compute */
    float *dq;                /* (stacked, head_dim) */
    float *s, *ds;            /* (stacked, span) */
    uint16_t *weights, *dw;   /* s and ds as bf16, if the products are bf16 */
    float *dk, *dv;           /* (nblock) panels */
    float delta[CPU_STACKED]; /* Σ d_o · o */
};

/* WANTED: pieces that keep the threads busy when there are few documents and heads. Each part costs a copy of dk and
 * dv. */
enum { WANTED = 16, MOST_PARTS = 8 };

static int64_t parts_of(const struct kern_attention_shape *shape, int64_t ndoc, int64_t nblock)
{
    int64_t npieces = shape->nkv * cpu_attention_nstack(shape) * (ndoc > 0 ? ndoc : 1),
            n = (WANTED + npieces - 1) / npieces;
    n = n < MOST_PARTS ? n : MOST_PARTS;
    return n < nblock ? n : nblock > 0 ? nblock : 1;
}

size_t cpu_attention_grad_scratch(const struct kern_stream *stream, const struct kern_attention_shape *shape)
{
    (void)stream;
    const int64_t nblock = cpu_attention_max_blocks(shape, shape->ndoc);
    /* Panels per key head: keys, values, and their gradients per part. With fewer documents there are fewer blocks, but
     * more parts, so the maximum over ndoc counts. */
    int64_t most = (2 + 2 * cpu_attention_nstack(shape)) * nblock;
    for (int64_t ndoc = 1; ndoc <= WANTED && ndoc <= shape->ndoc; ndoc++) {
        const int64_t n = cpu_attention_max_blocks(shape, ndoc),
                      npanel = (2 + 2 * cpu_attention_nstack(shape) * parts_of(shape, ndoc, n)) * n;
        most = npanel > most ? npanel : most;
    }
    return cpu_attention_blocks_bytes(nblock) +
           (size_t)(most * shape->nkv * CPU_BLOCK * shape->head_dim) * sizeof(float);
}

static void pack(void *ctx, int64_t piece, unsigned worker)
{
    const struct backward *b = ctx;
    (void)worker;
    cpu_attention_pack_panel(&b->p, b->keys, b->g->k, piece);
    cpu_attention_pack_panel(&b->p, b->values, b->g->v, piece);
}

/* Turns the scores in w->s into weights, and the products d_o · v in w->ds into the gradients of the scores. */
static void softmax_grad_row(const struct backward *b, struct query *w, int64_t row, int64_t span, int64_t from,
                             int64_t to)
{
    const struct cpu_simd *simd = b->p.stream->simd;
    const float scale = b->p.shape->scale;
    float *s = w->s + row * span, *ds = w->ds + row * span;
    if (from < to) {
        const int64_t head = w->stack.head + row / CPU_BLOCK, token = w->block->token + row % CPU_BLOCK;
        simd->exp(s + from, s + from, scale, b->g->lse[head * b->p.shape->ntok + token], to - from);
        simd->softmax_grad(ds + from, s + from, ds + from, w->delta[row], scale, to - from);
    }
    cpu_attention_weights(&b->p, w->weights + row * span, s, from, to, span);
    cpu_attention_weights(&b->p, w->dw + row * span, ds, from, to, span);
}

static void softmax_grad_span(const struct backward *b, struct query *w, const struct cpu_token_block *k, int64_t span)
{
    for (int64_t row = 0; row < w->stack.n * CPU_BLOCK; row++) {
        int64_t from = 0, to = 0, i = row % CPU_BLOCK;
        if (i < w->block->n)
            cpu_attention_visible(&b->p, w->block, i, k, span, &from, &to);
        softmax_grad_row(b, w, row, span, from, to);
    }
}

/* Processes blocks block … block+n-1 of keys. */
static int attend_span(const struct backward *b, struct query *w, int64_t block, int64_t n)
{
    const struct cpu_packing *p = &b->p;
    const int64_t dim = p->shape->head_dim, rows = w->stack.n * CPU_BLOCK, span = n * CPU_BLOCK,
                  panel = cpu_attention_panel(p);
    const int64_t at = (w->stack.kv * p->nblock + block) * panel * kern_dtype_bytes(p->compute);
    int rc = cpu_attention_product(p, w->worker, rows, span, dim, w->q, dim, false, b->keys + at, dim, true, w->s, span,
                                   false);
    if (rc == KERN_OK)
        rc = cpu_attention_product(p, w->worker, rows, span, dim, w->d_o, dim, false, b->values + at, dim, true, w->ds,
                                   span, false);
    if (rc != KERN_OK)
        return rc;
    softmax_grad_span(b, w, &p->blocks[block], span);
    const void *weights = p->compute == KERN_F32 ? (const void *)w->s : w->weights,
               *dw = p->compute == KERN_F32 ? (const void *)w->ds : w->dw;
    rc = cpu_attention_product(p, w->worker, span, dim, rows, weights, span, true, w->d_o, dim, false,
                               w->dv + block * panel, dim, true);
    if (rc == KERN_OK)
        rc = cpu_attention_product(p, w->worker, span, dim, rows, dw, span, true, w->q, dim, false,
                                   w->dk + block * panel, dim, true);
    if (rc == KERN_OK)
        rc = cpu_attention_product(p, w->worker, rows, dim, span, dw, span, false, b->keys + at, dim, false, w->dq, dim,
                                   true);
    return rc;
}

static void load_delta(const struct backward *b, struct query *w)
{
    const struct cpu_simd *simd = b->p.stream->simd;
    const int64_t dim = b->p.shape->head_dim;
    float o[CPU_STRIP], d_o[CPU_STRIP];
    for (int64_t h = 0; h < w->stack.n; h++)
        for (int64_t i = 0; i < w->block->n; i++) {
            const int64_t token = w->block->token + i, col = (w->stack.head + h) * dim;
            w->delta[h * CPU_BLOCK + i] = simd->dot(cpu_load(simd, b->g->d_o, token, col, dim, d_o),
                                                    cpu_load(simd, b->g->o, token, col, dim, o), dim);
        }
}

/* Adds -Σ exp(sink - lse)·delta over all tokens to the gradient of a head's sink. */
static void sink_grad(void *ctx, int64_t head, unsigned worker)
{
    const struct backward *b = ctx;
    const struct cpu_simd *simd = b->p.stream->simd;
    const int64_t dim = b->p.shape->head_dim, ntok = b->p.shape->ntok;
    const float sink = cpu_load_one(simd, b->p.shape->sinks, 0, head), *lse = b->g->lse + head * ntok;
    float o[CPU_STRIP], d_o[CPU_STRIP];
    double sum = 0;
    (void)worker;
    for (int64_t i = 0; i < ntok; i++)
        sum += (double)(expf(sink - lse[i]) * simd->dot(cpu_load(simd, b->g->d_o, i, head * dim, dim, d_o),
                                                        cpu_load(simd, b->g->o, i, head * dim, dim, o), dim));
    b->g->dsinks[head] -= (float)sum;
}

static void store_dq(const struct backward *b, const struct query *w)
{
    const int64_t dim = b->p.shape->head_dim;
    for (int64_t h = 0; h < w->stack.n; h++)
        for (int64_t i = 0; i < w->block->n; i++)
            cpu_store(b->p.stream->simd, b->g->dq, w->block->token + i, (w->stack.head + h) * dim, dim,
                      w->dq + (h * CPU_BLOCK + i) * dim);
}

/* Reads q, d_o and o of the block before it writes any of dq, which may be one of them. */
static int query_block(const struct backward *b, struct query *w, int64_t block)
{
    w->block = &b->p.blocks[block];
    cpu_attention_pack_stack(&b->p, w->q, b->g->q, &w->stack, w->block);
    cpu_attention_pack_stack(&b->p, w->d_o, b->g->d_o, &w->stack, w->block);
    load_delta(b, w);
    memset(w->dq, 0, (size_t)(CPU_STACKED * b->p.shape->head_dim) * sizeof(*w->dq));
    const int64_t end = cpu_attention_end(&b->p, block);
    for (int64_t k = cpu_attention_first(&b->p, block); k < end; k += CPU_SPAN / CPU_BLOCK) {
        int rc = attend_span(b, w, k, end - k < CPU_SPAN / CPU_BLOCK ? end - k : CPU_SPAN / CPU_BLOCK);
        if (rc != KERN_OK)
            return rc;
    }
    store_dq(b, w);
    return KERN_OK;
}

static size_t worker_bytes(int64_t dim)
{
    return (size_t)(3 * CPU_STACKED * dim + 2 * CPU_STACKED * CPU_SPAN) * sizeof(float) +
           (size_t)(2 * CPU_STACKED * CPU_SPAN) * sizeof(uint16_t);
}

static struct query split_scratch(const struct backward *b, unsigned worker, int64_t stack, int64_t part)
{
    const int64_t dim = b->p.shape->head_dim,
                  mine = (stack * b->npart + part) * b->p.nblock * cpu_attention_panel(&b->p);
    float *scratch = b->p.stream->scratch[worker].data;
    struct query w = { .worker = worker,
                       .stack = cpu_attention_stack(&b->p, stack),
                       .q = scratch,
                       .dk = b->dk + mine,
                       .dv = b->dv + mine };
    w.d_o = scratch + CPU_STACKED * dim;
    w.dq = scratch + 2 * CPU_STACKED * dim;
    w.s = w.dq + CPU_STACKED * dim;
    w.ds = w.s + CPU_STACKED * CPU_SPAN;
    w.weights = (uint16_t *)(w.ds + CPU_STACKED * CPU_SPAN);
    w.dw = w.weights + CPU_STACKED * CPU_SPAN;
    return w;
}

static int64_t blocks_before(const struct kern_attention_shape *shape, int64_t doc)
{
    struct kern_attention_shape head = *shape;
    head.ndoc = doc;
    return cpu_attention_nblock(&head);
}

static void attend_back(void *ctx, int64_t piece, unsigned worker)
{
    const struct backward *b = ctx;
    const int64_t nstacks = b->p.shape->nkv * b->p.nstack, panel = cpu_attention_panel(&b->p);
    const int64_t part = piece % b->npart, stack = piece / b->npart % nstacks, doc = piece / b->npart / nstacks;
    const int64_t first = blocks_before(b->p.shape, doc), end = blocks_before(b->p.shape, doc + 1);
    struct query w = split_scratch(b, worker, stack, part);
    memset(w.dk + first * panel, 0, (size_t)((end - first) * panel) * sizeof(float));
    memset(w.dv + first * panel, 0, (size_t)((end - first) * panel) * sizeof(float));
    for (int64_t block = first + part; block < end; block += b->npart)
        if (query_block(b, &w, block) != KERN_OK)
            return;
}

/* Adds the panels of a key head's stacks and parts into the first one, and stores the sum. */
static void fold(const struct backward *b, float *parts, struct kern_mat out, int64_t kv, int64_t block)
{
    const struct cpu_simd *simd = b->p.stream->simd;
    const struct cpu_token_block *t = &b->p.blocks[block];
    const int64_t panel = cpu_attention_panel(&b->p), nsum = b->p.nstack * b->npart, dim = b->p.shape->head_dim;
    float *sum = parts + (kv * nsum * b->p.nblock + block) * panel;
    for (int64_t i = 1; i < nsum; i++)
        simd->add(sum, sum, sum + i * b->p.nblock * panel, t->n * dim);
    for (int64_t i = 0; i < t->n; i++)
        cpu_store(simd, out, t->token + i, kv * dim, dim, sum + i * dim);
}

static void fold_block(void *ctx, int64_t piece, unsigned worker)
{
    const struct backward *b = ctx;
    (void)worker;
    fold(b, b->dk, b->g->dk, piece / b->p.nblock, piece % b->p.nblock);
    fold(b, b->dv, b->g->dv, piece / b->p.nblock, piece % b->p.nblock);
}

void cpu_attention_grad(struct kern_stream *stream, const struct kern_attention_grad *g)
{
    struct backward b = { .g = g };
    if (!cpu_attention_check(stream, &g->shape) || !cpu_reserve(stream, worker_bytes(g->shape.head_dim)))
        return;
    cpu_attention_blocks(&b.p, stream, &g->shape, g->q.dtype, g->scratch);
    b.npart = parts_of(&g->shape, g->shape.ndoc, b.p.nblock);
    const int64_t nkv = g->shape.nkv * b.p.nblock * cpu_attention_panel(&b.p);
    b.dk = (float *)((char *)g->scratch + cpu_attention_blocks_bytes(b.p.nblock));
    b.dv = b.dk + nkv * b.p.nstack * b.npart;
    b.keys = (char *)(b.dv + nkv * b.p.nstack * b.npart);
    b.values = b.keys + nkv * kern_dtype_bytes(b.p.compute);
    int threads = cpu_matmul_enter();
    if (g->dsinks) /* before dq, which may be o or d_o */
        kern_pool_run(stream->pool, g->shape.nhead, sink_grad, &b);
    kern_pool_run(stream->pool, g->shape.nkv * b.p.nblock, pack, &b);
    kern_pool_run(stream->pool, g->shape.ndoc * g->shape.nkv * b.p.nstack * b.npart, attend_back, &b);
    if (!stream->status)
        kern_pool_run(stream->pool, g->shape.nkv * b.p.nblock, fold_block, &b);
    cpu_matmul_leave(threads);
}
