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

/* weights (nkeys) = q · keys, not scaled. */
static void score(const struct cpu_simd *simd, const struct kern_attention_one *a, struct kern_cmat k, const float *q,
                  float *weights)
{
    if (k.dtype == KERN_BF16) {
        simd->dot_rows(weights, k.data, k.pitch, q, a->nkeys, a->head_dim);
        return;
    }
    for (int64_t i = 0; i < a->nkeys; i++)
        weights[i] = simd->dot(q, (const float *)k.data + i * k.pitch, a->head_dim);
}

static void mix(const struct cpu_simd *simd, const struct kern_attention_one *a, struct kern_cmat v,
                const float *weights, float *o)
{
    if (v.dtype == KERN_BF16) {
        simd->sum_scaled_rows(o, v.data, v.pitch, weights, a->nkeys, a->head_dim);
        return;
    }
    memset(o, 0, (size_t)a->head_dim * sizeof(*o));
    for (int64_t i = 0; i < a->nkeys; i++)
        simd->add_scaled(o, (const float *)v.data + i * v.pitch, weights[i], a->head_dim);
}

static void run_head(void *ctx, int64_t head, unsigned worker)
{
    const struct one_work *w = ctx;
    const struct kern_attention_one *a = w->a;
    const struct cpu_simd *simd = w->stream->simd;
    int64_t kv = head / (a->nhead / a->nkv) * a->head_dim, at = head * a->head_dim;
    float *q = w->stream->scratch[worker].data, *o = q + a->head_dim, *weights = o + a->head_dim;
    cpu_load_copy(simd, q, a->q, 0, at, a->head_dim);
    score(simd, a, columns_from(a->k, kv), q, weights);
    const float most = simd->max(weights, a->nkeys) * a->scale,
                sink = a->sinks.data ? cpu_load_one(simd, a->sinks, 0, head) : -INFINITY,
                top = sink > most ? sink : most;
    const float sum = simd->exp(weights, weights, a->scale, top, a->nkeys) + expf(sink - top);
    mix(simd, a, columns_from(a->v, kv), weights, o);
    simd->scale(o, o, 1.0f / sum, a->head_dim);
    cpu_store(simd, a->o, 0, at, a->head_dim, o);
}

void cpu_attention_one(struct kern_stream *stream, const struct kern_attention_one *a)
{
    struct one_work w = { stream, a };
    if (!cpu_check(stream, a->nkeys > 0 && a->head_dim > 0 && a->nkv > 0 && a->nhead % a->nkv == 0 && a->scale > 0,
                   "attention_one: no keys, query heads that are no multiple of the key heads, or a scale that is not "
                   "positive"))
        return;
    if (cpu_reserve(stream, (size_t)(2 * a->head_dim + a->nkeys) * sizeof(float)))
        kern_pool_run(a->nkeys * a->nhead * a->head_dim <= ALONE ? NULL : stream->pool, a->nhead, run_head, &w);
}
