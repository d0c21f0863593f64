/* SPDX-License-Identifier: Apache-2.0 */
/* Forward pass of attention. A piece of work is a block of queries of a stack of heads. It loops over the keys that
 * they see, a span at a time, with an online softmax: a running maximum and sum. */
#include "cpu/attention.h"

#include "cpu/matmul.h"
#include "cpu/ops.h"

#include <math.h>
#include <string.h>

struct forward {
    const struct kern_attention *a;
    struct cpu_packing p;
    char *keys, *values; /* (nkv, nblock) panels in p.compute */
};

/* State of a worker for one block of queries. */
struct query {
    unsigned worker;
    struct cpu_stack stack;
    const struct cpu_token_block *block;
    void *q;           /* (stacked, head_dim) in p.compute */
    float *o;          /* (stacked, head_dim) */
    float *s;          /* (stacked, span) */
    uint16_t *weights; /* (stacked, span): the weights as bf16, if the products are bf16 */
    float top[CPU_STACKED], sum[CPU_STACKED];
};

size_t cpu_attention_table_bytes(const struct kern_stream *stream, const struct kern_attention_shape *shape)
{
    (void)stream, (void)shape;
    return 0;
}

/* The CPU kernels read cu_seqlens itself and need no table. */
void cpu_attention_table(struct kern_stream *stream, struct kern_attention_shape *shape)
{
    (void)stream;
    shape->table.ntile = 0;
}

size_t cpu_attention_scratch(const struct kern_stream *stream, const struct kern_attention_shape *shape)
{
    (void)stream;
    const int64_t nblock = cpu_attention_max_blocks(shape, shape->ndoc);
    return cpu_attention_blocks_bytes(nblock) +
           (size_t)(2 * shape->nkv * nblock * CPU_BLOCK * shape->head_dim) * sizeof(float);
}

static void pack(void *ctx, int64_t piece, unsigned worker)
{
    const struct forward *f = ctx;
    (void)worker;
    cpu_attention_pack_panel(&f->p, f->keys, f->a->k, piece);
    cpu_attention_pack_panel(&f->p, f->values, f->a->v, piece);
}

/* A sink is like a key that every query sees first, with a value of zero. */
static void begin_softmax(const struct forward *f, struct query *w)
{
    const bool sinks = f->p.shape->sinks.data != NULL;
    for (int64_t row = 0; row < CPU_STACKED; row++) {
        const int64_t h = row / CPU_BLOCK;
        w->top[row] = sinks && h < w->stack.n ? cpu_load_one(f->p.stream->simd, f->p.shape->sinks, 0, w->stack.head + h)
                                              : -INFINITY;
        w->sum[row] = sinks ? 1 : 0;
    }
}

/* One step of the online softmax for a row: turns its scores into weights and rescales the sums to the new maximum. */
static void online_softmax_step(const struct forward *f, struct query *w, int64_t row, int64_t span, int64_t from,
                                int64_t to)
{
    const struct cpu_simd *simd = f->p.stream->simd;
    const int64_t dim = f->p.shape->head_dim;
    float *s = w->s + row * span;
    if (from < to) {
        float top = simd->max(s + from, to - from) * f->p.shape->scale;
        if (!(top <= w->top[row])) { /* true for NaN too */
            float factor = w->sum[row] == 0 ? 0 : expf(w->top[row] - top);
            w->sum[row] *= factor;
            simd->scale(w->o + row * dim, w->o + row * dim, factor, dim);
            w->top[row] = top;
        }
        w->sum[row] += simd->exp(s + from, s + from, f->p.shape->scale, w->top[row], to - from);
    }
    cpu_attention_weights(&f->p, w->weights + row * span, s, from, to, span);
}

static void online_softmax_span(const struct forward *f, struct query *w, const struct cpu_token_block *k, int64_t span)
{
    for (int64_t row = 0; row < w->stack.n * CPU_BLOCK; row++) {
        int64_t from = 0, to = 0, i = row % CPU_BLOCK;
        if (i < w->block->n)
            cpu_attention_visible(&f->p, w->block, i, k, span, &from, &to);
        online_softmax_step(f, w, row, span, from, to);
    }
}

/* Processes blocks block … block+n-1 of keys. */
static int attend_span(const struct forward *f, struct query *w, int64_t block, int64_t n)
{
    const int64_t dim = f->p.shape->head_dim, rows = w->stack.n * CPU_BLOCK, span = n * CPU_BLOCK;
    const int64_t at =
        (w->stack.kv * f->p.nblock + block) * cpu_attention_panel(&f->p) * kern_dtype_bytes(f->p.compute);
    int rc = cpu_attention_product(&f->p, w->worker, rows, span, dim, w->q, dim, false, f->keys + at, dim, true, w->s,
                                   span, false);
    if (rc != KERN_OK)
        return rc;
    online_softmax_span(f, w, &f->p.blocks[block], span);
    const void *weights = f->p.compute == KERN_F32 ? (const void *)w->s : w->weights;
    return cpu_attention_product(&f->p, w->worker, rows, dim, span, weights, span, false, f->values + at, dim, false,
                                 w->o, dim, true);
}

static void store(const struct forward *f, struct query *w)
{
    const struct cpu_simd *simd = f->p.stream->simd;
    const int64_t dim = f->p.shape->head_dim;
    for (int64_t h = 0; h < w->stack.n; h++)
        for (int64_t i = 0; i < w->block->n; i++) {
            const int64_t row = h * CPU_BLOCK + i, head = w->stack.head + h;
            float *o = w->o + row * dim;
            simd->scale(o, o, 1.0f / w->sum[row], dim);
            cpu_store(simd, f->a->o, w->block->token + i, head * dim, dim, o);
            if (f->a->lse)
                f->a->lse[head * f->p.shape->ntok + w->block->token + i] = w->top[row] + logf(w->sum[row]);
        }
}

static size_t worker_bytes(int64_t dim)
{
    return (size_t)(2 * CPU_STACKED * dim + CPU_STACKED * CPU_SPAN) * sizeof(float) +
           (size_t)(CPU_STACKED * CPU_SPAN) * sizeof(uint16_t);
}

static void attend(void *ctx, int64_t piece, unsigned worker)
{
    const struct forward *f = ctx;
    const int64_t nstacks = f->p.shape->nkv * f->p.nstack, dim = f->p.shape->head_dim;
    const int64_t block = f->p.nblock - 1 - piece / nstacks; /* long ones first */
    float *scratch = f->p.stream->scratch[worker].data;
    struct query w = { .worker = worker,
                       .stack = cpu_attention_stack(&f->p, piece % nstacks),
                       .block = &f->p.blocks[block] };
    w.q = scratch;
    w.o = scratch + CPU_STACKED * dim;
    w.s = w.o + CPU_STACKED * dim;
    w.weights = (uint16_t *)(w.s + CPU_STACKED * CPU_SPAN);
    cpu_attention_pack_stack(&f->p, w.q, f->a->q, &w.stack, w.block);
    memset(w.o, 0, (size_t)(CPU_STACKED * dim) * sizeof(*w.o));
    begin_softmax(f, &w);
    const int64_t end = cpu_attention_end(&f->p, block);
    for (int64_t b = cpu_attention_first(&f->p, block); b < end; b += CPU_SPAN / CPU_BLOCK)
        if (attend_span(f, &w, b, end - b < CPU_SPAN / CPU_BLOCK ? end - b : CPU_SPAN / CPU_BLOCK) != KERN_OK)
            return;
    store(f, &w);
}

void cpu_attention(struct kern_stream *stream, const struct kern_attention *a)
{
    struct forward f = { .a = a };
    if (!cpu_attention_check(stream, &a->shape) || !cpu_reserve(stream, worker_bytes(a->shape.head_dim)))
        return;
    cpu_attention_blocks(&f.p, stream, &a->shape, a->q.dtype, a->scratch);
    f.keys = (char *)a->scratch + cpu_attention_blocks_bytes(f.p.nblock);
    f.values = f.keys + a->shape.nkv * f.p.nblock * cpu_attention_panel(&f.p) * kern_dtype_bytes(f.p.compute);
    int threads = cpu_matmul_enter();
    kern_pool_run(stream->pool, a->shape.nkv * f.p.nblock, pack, &f);
    kern_pool_run(stream->pool, a->shape.nkv * f.p.nstack * f.p.nblock, attend, &f);
    cpu_matmul_leave(threads);
}
