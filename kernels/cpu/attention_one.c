/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of one token. A piece is a head; its weights lie in the worker's scratch. Heads that share keys find them
 * in the cache. */
#include "cpu/ops.h"
#include "cpu/work.h"

#include <math.h>
#include <string.h>

enum { ALONE = 64 * 1024 }; /* elements of keys; for fewer, waking threads does not pay */

struct one_work {
    const struct kern_stream *stream;
    const struct kern_attention_one *a;
};

static struct kern_cmat columns_from(struct kern_cmat m, int64_t col)
{
    m.data = (const char *)m.data + col * kern_dtype_bytes(m.dtype);
    return m;
}

/* Keys and values that lie in one piece: n of them, from key `from` on. */
struct keys {
    int64_t from, n;
    struct kern_cmat k, v;
};

/* The piece that begins at key `from`, of the head whose first column is col. */
static struct keys keys_at(const struct kern_attention_one *a, int64_t from, int64_t col)
{
    const struct kern_pages *p = &a->pages;
    struct keys s = { from, a->nkeys - from, a->k, a->v };
    if (p->list) {
        const int64_t row = (p->first + from) % p->nrow, left = p->nrow - row;
        const char *page = p->list[(p->first + from) / p->nrow];
        s.n = s.n < left ? s.n : left;
        s.k.data = page + p->k_at + row * s.k.pitch * kern_dtype_bytes(s.k.dtype);
        s.v.data = page + p->v_at + row * s.v.pitch * kern_dtype_bytes(s.v.dtype);
    }
    s.k = columns_from(s.k, col);
    s.v = columns_from(s.v, col);
    return s;
}

/* weights (nkeys) = q · keys, not scaled. */
static void score(const struct cpu_simd *simd, const struct kern_attention_one *a, int64_t col, const float *q,
                  float *weights)
{
    for (struct keys s = { 0 }; s.from + s.n < a->nkeys;) {
        s = keys_at(a, s.from + s.n, col);
        if (s.k.dtype == KERN_BF16)
            simd->dot_rows(weights + s.from, s.k.data, s.k.pitch, q, s.n, a->head_dim);
        for (int64_t i = 0; s.k.dtype == KERN_F32 && i < s.n; i++)
            weights[s.from + i] = simd->dot(q, (const float *)s.k.data + i * s.k.pitch, a->head_dim);
    }
}

/* The order of the sums is that of the keys, wherever a page ends. */
static void mix(const struct cpu_simd *simd, const struct kern_attention_one *a, int64_t col, const float *weights,
                float *o)
{
    memset(o, 0, (size_t)a->head_dim * sizeof(*o));
    for (struct keys s = { 0 }; s.from + s.n < a->nkeys;) {
        s = keys_at(a, s.from + s.n, col);
        if (s.v.dtype == KERN_BF16)
            simd->add_scaled_rows(o, s.v.data, s.v.pitch, weights + s.from, s.n, a->head_dim);
        for (int64_t i = 0; s.v.dtype == KERN_F32 && i < s.n; i++)
            simd->add_scaled(o, (const float *)s.v.data + i * s.v.pitch, weights[s.from + i], a->head_dim);
    }
}

static void run_head(void *ctx, int64_t head, unsigned worker)
{
    const struct one_work *w = ctx;
    const struct kern_attention_one *a = w->a;
    const struct cpu_simd *simd = w->stream->simd;
    int64_t kv = head / (a->nhead / a->nkv) * a->head_dim, at = head * a->head_dim;
    float *q = w->stream->scratch[worker].data, *o = q + a->head_dim, *weights = o + a->head_dim;
    cpu_load_copy(simd, q, a->q, 0, at, a->head_dim);
    score(simd, a, kv, q, weights);
    const float most = simd->max(weights, a->nkeys) * a->scale,
                sink = a->sinks.data ? cpu_load_one(simd, a->sinks, 0, head) : -INFINITY,
                top = sink > most ? sink : most;
    const float sum = simd->exp(weights, weights, a->scale, top, a->nkeys) + expf(sink - top);
    mix(simd, a, kv, weights, o);
    simd->scale(o, o, 1.0f / sum, a->head_dim);
    cpu_store(simd, a->o, 0, at, a->head_dim, o);
}

void cpu_attention_one(struct kern_stream *stream, const struct kern_attention_one *a)
{
    struct one_work w = { stream, a };
    if (!cpu_check(stream, !a->pages.list || (a->pages.nrow > 0 && a->pages.first >= 0),
                   "attention_one: pages without rows, or a first row before them"))
        return;
    if (!cpu_check(stream, a->nkeys > 0 && a->head_dim > 0 && a->nkv > 0 && a->nhead % a->nkv == 0 && a->scale > 0,
                   "attention_one: no keys, query heads that are no multiple of the key heads, or a scale that is not "
                   "positive"))
        return;
    if (cpu_reserve(stream, (size_t)(2 * a->head_dim + a->nkeys) * sizeof(float)))
        kern_pool_run(a->nkeys * a->nhead * a->head_dim <= ALONE ? NULL : stream->pool, a->nhead, run_head, &w);
}
