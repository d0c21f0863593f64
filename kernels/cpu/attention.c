/* Attention's forward: a piece of work is a block of queries of one head, which runs over the blocks of keys that it sees with a running maximum and sum. */
#include "cpu/attention.h"

#include "cpu/ops.h"

#include <math.h>
#include <string.h>

struct forward {
    const struct kern_attention *a;
    struct kern_stream *stream;
    struct cpu_packing p;
    float *keys;   /* (nkv, nblock) panels, transposed */
    float *values; /* (nkv, nblock) panels: (CPU_BLOCK, dim) */
};

/* A worker's part of a query block. */
struct query {
    float *q, *o;      /* (CPU_BLOCK, dim) */
    float *s;          /* (CPU_BLOCK, CPU_BLOCK) */
    float top[CPU_BLOCK], sum[CPU_BLOCK];
};

size_t cpu_attention_scratch(const struct kern_stream *stream, const struct kern_attention_shape *shape)
{
    (void)stream;
    const int64_t nblock = cpu_attention_nblock(shape);
    return cpu_attention_blocks_bytes(nblock) + (size_t)(2 * shape->nkv * nblock * cpu_attention_dim(shape) * CPU_BLOCK) * sizeof(float);
}

static void pack(void *ctx, int64_t piece, unsigned worker)
{
    const struct forward *f = ctx;
    const struct cpu_token_block *b = &f->p.blocks[piece % f->p.nblock];
    const int64_t head = piece / f->p.nblock, panel = cpu_attention_panel(&f->p);
    (void)worker;
    cpu_attention_columns(f->stream->simd, &f->p, f->keys + piece * panel, f->a->k, head, b);
    cpu_attention_rows(f->stream->simd, &f->p, f->values + piece * panel, f->a->v, head, b, 1);
}

/* A row of scores becomes weights; what was summed before is brought to the new maximum. */
static void soften(const struct cpu_simd *simd, const struct forward *f, struct query *w, int i, int from, int to)
{
    float *s = w->s + i * CPU_BLOCK, top = simd->max(s + from, to - from);
    memset(s, 0, (size_t)from * sizeof(*s));
    memset(s + to, 0, (size_t)(CPU_BLOCK - to) * sizeof(*s));
    if (from == to)
        return;
    if (!(top <= w->top[i])) { /* also where it is NaN */
        float factor = w->sum[i] == 0 ? 0 : expf(w->top[i] - top);
        w->sum[i] *= factor;
        simd->scale(w->o + i * f->p.dim, w->o + i * f->p.dim, factor, f->p.dim);
        w->top[i] = top;
    }
    w->sum[i] += simd->exp(s + from, s + from, 1, w->top[i], to - from);
}

static void see_block(const struct forward *f, struct query *w, const struct cpu_token_block *q, int64_t kv, int64_t block)
{
    const struct cpu_simd *simd = f->stream->simd;
    const struct cpu_token_block *k = &f->p.blocks[block];
    const int64_t panel = cpu_attention_panel(&f->p), at = (kv * f->p.nblock + block) * panel;
    const int dim = (int)f->p.dim, n = (int)q->n;
    simd->tile(n, CPU_BLOCK, dim, w->q, dim, 1, f->keys + at, CPU_BLOCK, w->s, CPU_BLOCK, false);
    for (int i = 0; i < n; i++) {
        int from, to;
        cpu_attention_seen(&f->p, q->token + i, k, &from, &to);
        soften(simd, f, w, i, from, to);
    }
    simd->tile(n, dim, (int)k->n, w->s, CPU_BLOCK, 1, f->values + at, dim, w->o, dim, true);
}

static void store(const struct forward *f, struct query *w, const struct cpu_token_block *q, int64_t head)
{
    const struct cpu_simd *simd = f->stream->simd;
    const int64_t head_dim = f->p.shape->head_dim;
    for (int64_t i = 0; i < q->n; i++) {
        float *o = w->o + i * f->p.dim;
        simd->scale(o, o, 1.0f / w->sum[i], head_dim);
        cpu_store(simd, f->a->o, q->token + i, head * head_dim, head_dim, o);
        if (f->a->lse)
            f->a->lse[head * f->p.shape->ntok + q->token + i] = w->top[i] + logf(w->sum[i]);
    }
}

/* Heads of one block lie side by side in the order of pieces: they share keys. */
static void attend(void *ctx, int64_t piece, unsigned worker)
{
    const struct forward *f = ctx;
    const int64_t block = f->p.nblock - 1 - piece / f->p.shape->nhead, head = piece % f->p.shape->nhead; /* long ones first */
    const int64_t kv = head / (f->p.shape->nhead / f->p.shape->nkv), panel = cpu_attention_panel(&f->p);
    const struct cpu_token_block *q = &f->p.blocks[block];
    float *scratch = f->stream->scratch[worker].data;
    struct query w = {.q = scratch, .o = scratch + panel, .s = scratch + 2 * panel};
    cpu_attention_rows(f->stream->simd, &f->p, w.q, f->a->q, head, q, f->p.shape->scale);
    memset(w.o, 0, (size_t)panel * sizeof(*w.o));
    for (int i = 0; i < CPU_BLOCK; i++)
        w.top[i] = -INFINITY;
    for (int64_t b = cpu_attention_first(&f->p, block); b <= block; b++)
        see_block(f, &w, q, kv, b);
    store(f, &w, q, head);
}

void cpu_attention(struct kern_stream *stream, const struct kern_attention *a)
{
    struct forward f = {.a = a, .stream = stream};
    if (!cpu_attention_check(stream, &a->shape))
        return;
    cpu_attention_blocks(&f.p, &a->shape, a->scratch);
    f.keys = (float *)((char *)a->scratch + cpu_attention_blocks_bytes(f.p.nblock));
    f.values = f.keys + a->shape.nkv * f.p.nblock * cpu_attention_panel(&f.p);
    if (!cpu_reserve(stream, (size_t)(2 * cpu_attention_panel(&f.p) + CPU_BLOCK * CPU_BLOCK) * sizeof(float)))
        return;
    kern_pool_run(stream->pool, a->shape.nkv * f.p.nblock, pack, &f);
    kern_pool_run(stream->pool, a->shape.nhead * f.p.nblock, attend, &f);
}
