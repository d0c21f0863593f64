/* Attention's backward. A piece of work is a document and a head: it runs over query blocks and the key blocks that each sees, finishes dq, and adds to
 * the head's own dk and dv in scratch. Then the heads that share a key head are added in order. */
#include "cpu/attention.h"

#include "cpu/ops.h"

#include <string.h>

struct backward {
    const struct kern_attention_grad *g;
    struct kern_stream *stream;
    struct cpu_packing p;
    float *keys_t, *keys, *values_t; /* (nkv, nblock) panels; _t transposed */
    float *dk, *dv;                  /* (nhead, nblock) panels (CPU_BLOCK, dim) */
};

/* A worker's part of a query block. */
struct query {
    float *q, *d_o, *dq;       /* (CPU_BLOCK, dim); q is scaled */
    float *s, *ds;             /* (CPU_BLOCK, CPU_BLOCK) */
    float delta[CPU_BLOCK];    /* Σ d_o · o */
    const float *lse;
};

size_t cpu_attention_grad_scratch(const struct kern_stream *stream, const struct kern_attention_shape *shape)
{
    (void)stream;
    const int64_t nblock = cpu_attention_nblock(shape), npanel = (3 * shape->nkv + 2 * shape->nhead) * nblock;
    return cpu_attention_blocks_bytes(nblock) + (size_t)(npanel * cpu_attention_dim(shape) * CPU_BLOCK) * sizeof(float);
}

static void pack(void *ctx, int64_t piece, unsigned worker)
{
    const struct backward *b = ctx;
    const struct cpu_simd *simd = b->stream->simd;
    const struct cpu_token_block *t = &b->p.blocks[piece % b->p.nblock];
    const int64_t head = piece / b->p.nblock, at = piece * cpu_attention_panel(&b->p);
    (void)worker;
    cpu_attention_columns(simd, &b->p, b->keys_t + at, b->g->k, head, t);
    cpu_attention_rows(simd, &b->p, b->keys + at, b->g->k, head, t, 1);
    cpu_attention_columns(simd, &b->p, b->values_t + at, b->g->v, head, t);
}

/* w->s and w->ds, as scores and as d_o · v, become weights and the scores' gradient. */
static void soften(const struct backward *b, struct query *w, const struct cpu_token_block *q, const struct cpu_token_block *k)
{
    const struct cpu_simd *simd = b->stream->simd;
    for (int i = 0; i < (int)q->n; i++) {
        int from, to;
        float *s = w->s + i * CPU_BLOCK, *ds = w->ds + i * CPU_BLOCK;
        cpu_attention_seen(&b->p, q->token + i, k, &from, &to);
        simd->exp(s + from, s + from, 1, w->lse[i], to - from);
        memset(s, 0, (size_t)from * sizeof(*s));
        memset(s + to, 0, (size_t)(CPU_BLOCK - to) * sizeof(*s));
        memset(ds, 0, (size_t)from * sizeof(*ds));
        memset(ds + to, 0, (size_t)(CPU_BLOCK - to) * sizeof(*ds));
        simd->soft_grad(ds + from, s + from, ds + from, w->delta[i], 1, to - from);
    }
}

static void see_block(const struct backward *b, struct query *w, const struct cpu_token_block *q, int64_t head, int64_t block)
{
    const cpu_tile_fn tile = b->stream->simd->tile;
    const struct cpu_token_block *k = &b->p.blocks[block];
    const int64_t panel = cpu_attention_panel(&b->p), kv = head / (b->p.shape->nhead / b->p.shape->nkv);
    const int64_t at = (kv * b->p.nblock + block) * panel, mine = (head * b->p.nblock + block) * panel;
    const int dim = (int)b->p.dim, nq = (int)q->n, nk = (int)k->n;
    tile(nq, CPU_BLOCK, dim, w->q, dim, 1, b->keys_t + at, CPU_BLOCK, w->s, CPU_BLOCK, false);
    tile(nq, CPU_BLOCK, dim, w->d_o, dim, 1, b->values_t + at, CPU_BLOCK, w->ds, CPU_BLOCK, false);
    soften(b, w, q, k);
    tile(nk, dim, nq, w->s, 1, CPU_BLOCK, w->d_o, dim, b->dv + mine, dim, true);
    tile(nk, dim, nq, w->ds, 1, CPU_BLOCK, w->q, dim, b->dk + mine, dim, true);
    tile(nq, dim, nk, w->ds, CPU_BLOCK, 1, b->keys + at, dim, w->dq, dim, true);
}

/* Reads q, d_o and o of the block, of which dq may be one, before anything of it is written. */
static void load_query(const struct backward *b, struct query *w, const struct cpu_token_block *q, int64_t head)
{
    const struct cpu_simd *simd = b->stream->simd;
    cpu_attention_rows(simd, &b->p, w->dq, b->g->o, head, q, 1);
    cpu_attention_rows(simd, &b->p, w->d_o, b->g->d_o, head, q, 1);
    for (int64_t i = 0; i < q->n; i++)
        w->delta[i] = simd->dot(w->d_o + i * b->p.dim, w->dq + i * b->p.dim, b->p.dim);
    cpu_attention_rows(simd, &b->p, w->q, b->g->q, head, q, b->p.shape->scale);
    memset(w->dq, 0, (size_t)cpu_attention_panel(&b->p) * sizeof(*w->dq));
    w->lse = b->g->lse + head * b->p.shape->ntok + q->token;
}

static void store_dq(const struct backward *b, struct query *w, const struct cpu_token_block *q, int64_t head)
{
    const int64_t head_dim = b->p.shape->head_dim;
    b->stream->simd->scale(w->dq, w->dq, b->p.shape->scale, q->n * b->p.dim);
    for (int64_t i = 0; i < q->n; i++)
        cpu_store(b->stream->simd, b->g->dq, q->token + i, head * head_dim, head_dim, w->dq + i * b->p.dim);
}

static struct query carve(const struct backward *b, unsigned worker)
{
    const int64_t panel = cpu_attention_panel(&b->p);
    float *scratch = b->stream->scratch[worker].data;
    return (struct query){.q = scratch, .d_o = scratch + panel, .dq = scratch + 2 * panel, .s = scratch + 3 * panel,
                          .ds = scratch + 3 * panel + CPU_BLOCK * CPU_BLOCK};
}

/* Pieces are (document, head); a document is known by its first block. */
static void attend_back(void *ctx, int64_t piece, unsigned worker)
{
    const struct backward *b = ctx;
    const int64_t doc = piece / b->p.shape->nhead, head = piece % b->p.shape->nhead, panel = cpu_attention_panel(&b->p);
    struct query w = carve(b, worker);
    int64_t first = 0;
    for (int64_t d = 0; d < doc; d++)
        first += (b->p.shape->cu_seqlens[d + 1] - b->p.shape->cu_seqlens[d] + CPU_BLOCK - 1) / CPU_BLOCK;
    for (int64_t block = first; block < b->p.nblock && b->p.blocks[block].first == first; block++) {
        const struct cpu_token_block *q = &b->p.blocks[block];
        if (q->token >= b->p.shape->cu_seqlens[doc + 1])
            break; /* an empty document */
        memset(b->dk + (head * b->p.nblock + block) * panel, 0, (size_t)panel * sizeof(float));
        memset(b->dv + (head * b->p.nblock + block) * panel, 0, (size_t)panel * sizeof(float));
        load_query(b, &w, q, head);
        for (int64_t k = cpu_attention_first(&b->p, block); k <= block; k++)
            see_block(b, &w, q, head, k);
        store_dq(b, &w, q, head);
    }
}

/* The sum over a group's heads, in the first one's panel, goes out. */
static void fold(const struct backward *b, float *parts, struct kern_mat out, int64_t kv, int64_t block)
{
    const struct cpu_simd *simd = b->stream->simd;
    const struct cpu_token_block *t = &b->p.blocks[block];
    const int64_t panel = cpu_attention_panel(&b->p), group = b->p.shape->nhead / b->p.shape->nkv, head_dim = b->p.shape->head_dim;
    float *sum = parts + (kv * group * b->p.nblock + block) * panel;
    for (int64_t i = 1; i < group; i++)
        simd->add(sum, sum, sum + i * b->p.nblock * panel, t->n * b->p.dim);
    for (int64_t i = 0; i < t->n; i++)
        cpu_store(simd, out, t->token + i, kv * head_dim, head_dim, sum + i * b->p.dim);
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
    struct backward b = {.g = g, .stream = stream};
    if (!cpu_attention_check(stream, &g->shape))
        return;
    cpu_attention_blocks(&b.p, &g->shape, g->scratch);
    const int64_t panel = cpu_attention_panel(&b.p), nkv = g->shape.nkv * b.p.nblock * panel;
    b.keys_t = (float *)((char *)g->scratch + cpu_attention_blocks_bytes(b.p.nblock));
    b.keys = b.keys_t + nkv;
    b.values_t = b.keys + nkv;
    b.dk = b.values_t + nkv;
    b.dv = b.dk + g->shape.nhead * b.p.nblock * panel;
    if (!cpu_reserve(stream, (size_t)(3 * panel + 2 * CPU_BLOCK * CPU_BLOCK) * sizeof(float)))
        return;
    kern_pool_run(stream->pool, g->shape.nkv * b.p.nblock, pack, &b);
    kern_pool_run(stream->pool, g->shape.ndoc * g->shape.nhead, attend_back, &b);
    kern_pool_run(stream->pool, g->shape.nkv * b.p.nblock, fold_block, &b);
}
