/* SPDX-License-Identifier: Apache-2.0 */
/* The softmax of attention in registers, shared by the tensor-core kernels: products by warps (mma) and by warpgroups
 * (wgmma). An accumulator is the 16 rows of a warp (attention_tiles.cuh). */
#ifndef CUDA_ATTENTION_WEIGHTS_CUH
#define CUDA_ATTENTION_WEIGHTS_CUH

#include "cuda/attention_tiles.cuh"

constexpr float LOG2E = 1.44269504f;

/* 2ˣ, to two units in the last place. A subnormal result is flushed to zero. */
__device__ __forceinline__ float power_of_two(float x)
{
#ifdef __CUDACC__
    asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(x));
    return x;
#else
    return exp2f(x);
#endif
}

/* A query sees the keys of its document at distances 0 … window_of - 1 before it, counted from origin_of on. If not
 * causal, these are all distances that occur. */
__device__ __forceinline__ uint32_t window_of(const struct kern_attention_shape &s)
{
    return s.window && s.window < INT32_MAX ? (uint32_t)s.window : INT32_MAX;
}

__device__ __forceinline__ int origin_of(const struct kern_attention_shape &s)
{
    return s.full ? INT32_MAX / 2 : 0;
}

/* The tiles of keys that a tile of queries of one head sees. There are ntile of them, of nrow keys each; tile i begins
 * at token first + i · nrow. Tiles are counted from the start of the document. */
struct key_tiles {
    struct tile queries;
    int64_t head, kv, first;
    int64_t end; /* of the document's keys; padding behind them is not loaded */
    int32_t ntile;
};

__device__ __forceinline__ key_tiles find_key_tiles(const struct kern_attention_shape &s, const struct tile &queries,
                                                    int64_t nrow)
{
    /* number of leading keys of the document that no query of the tile sees */
    const int64_t unseen =
        s.window && queries.token - s.window + 1 > queries.begin ? queries.token - s.window + 1 - queries.begin : 0;
    key_tiles w;
    w.queries = queries;
    w.head = blockIdx.y;
    w.kv = blockIdx.y / ((uint32_t)s.nhead / (uint32_t)s.nkv);
    w.first = queries.begin + unseen / nrow * nrow;
    w.end = end_of_keys(s, queries.begin, queries.end);
    const int64_t end = s.full || queries.token + queries.n > w.end ? w.end : queries.token + queries.n;
    w.ntile = (int32_t)((end - w.first + nrow - 1) / nrow);
    return w;
}

/* The token after the last query of the document that sees a key of the tile. */
__device__ __forceinline__ int64_t end_of_queries_seeing(const struct kern_attention_shape &s, const struct tile &keys)
{
    const int64_t last = keys.token + keys.n - 1; /* the last key of the tile */
    return s.window && last + s.window < keys.end ? last + s.window : keys.end;
}

/* Returns true if each of nquery queries from `query` sees each of nkey keys from `key`, if none of them is padding. */
__device__ __forceinline__ bool all_visible(const struct kern_attention_shape &s, int64_t query, int64_t nquery,
                                            int64_t key, int64_t nkey)
{
    return s.full || (query >= key + nkey - 1 && query + nquery - 1 - key < window_of(s));
}

/* The running maximum and sum of the online softmax. A thread holds parts of two rows, 8 apart. */
struct softmax_state {
    float top[2], sum[2];
};

/* A sink is like a key that every query sees first, with a value of zero. */
__device__ __forceinline__ softmax_state begin_rows(const struct kern_attention_shape &s, int64_t head)
{
    if (!s.sinks.data)
        return softmax_state{ { -INFINITY, -INFINITY }, { 0, 0 } };
    const float sink = load1<MIXED>(s.sinks, 0, head) / s.scale;
    return softmax_state{ { sink, sink }, { 1, 1 } };
}

/* Sets the scores of masked keys to -inf. s: scores (queries, keys) of an accumulator of the tile w.queries, which has
 * nrow queries, with N keys of its document from key0 on. */
template <int N>
__device__ __forceinline__ void apply_mask(accumulator<N> &s, const struct kern_attention_shape &shape,
                                           const key_tiles &w, int64_t nrow, int64_t key0)
{
    const int before = (int)(w.queries.token - key0) + first_row() + origin_of(shape), nkey = (int)(w.end - key0);
    const uint32_t limit = window_of(shape);
    if (nkey >= N && all_visible(shape, w.queries.token, nrow, key0, N))
        return;
#pragma unroll
    for (int i = 0; i < N / 8; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int col = i * 8 + accumulator_col(e);
            if ((uint32_t)(before + accumulator_row(e) - col) >= limit || col >= nkey)
                s.v[i][e] = -INFINITY;
        }
}

/* One step of the online softmax (FlashAttention). Turns scores into weights and updates the maximum and the sum; the
 * caller multiplies what it summed before by factor. unit: one unit of a score, in base-2 logarithms. */
template <int N>
__device__ __forceinline__ void online_softmax_step(accumulator<N> &s, softmax_state &r, float factor[2], float unit)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float top = -INFINITY, sum = 0;
#pragma unroll
        for (int i = 0; i < N / 8; i++)
            top = fmaxf(top, fmaxf(s.v[i][2 * half], s.v[i][2 * half + 1]));
        top = fmaxf(r.top[half], row_max(top));
        const float base = top == -INFINITY ? 0 : top * unit;
        factor[half] = power_of_two(r.top[half] * unit - base);
#pragma unroll
        for (int i = 0; i < N / 8; i++)
#pragma unroll
            for (int e = 2 * half; e < 2 * half + 2; e++)
                sum += s.v[i][e] = power_of_two(s.v[i][e] * unit - base);
        r.sum[half] = r.sum[half] * factor[half] + row_sum(sum);
        r.top[half] = top;
    }
}

template <int N> __device__ __forceinline__ void scale_rows(accumulator<N> &c, const float factor[2])
{
#pragma unroll
    for (int i = 0; i < N / 8; i++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            c.v[i][e] *= factor[e / 2];
}

/* The factors that normalise the output rows at the end. */
__device__ __forceinline__ void finish_rows(const softmax_state &r, float factor[2])
{
    factor[0] = 1.0f / r.sum[0];
    factor[1] = 1.0f / r.sum[1];
}

/* Stores the log-sum-exp of each row: (nhead, ntok). */
__device__ __forceinline__ void store_lse(const struct kern_attention &a, const struct tile &t, int64_t head,
                                          const softmax_state &r)
{
    for (int half = 0; a.lse && threadIdx.x % 4 == 0 && half < 2; half++) {
        const int row = first_row() + accumulator_row(2 * half);
        if (row < t.n)
            a.lse[head * a.shape.ntok + t.token + row] = r.top[half] * a.shape.scale + logf(r.sum[half]);
    }
}

/* lse and delta of the N queries of a tile, in shared memory. Zeros beyond the last query. */
template <int N> struct query_sums {
    alignas(16) float lse[N], delta[N];
};

/* The tiles of queries that see a tile of keys, for the backward pass. The query heads that share the key head come
 * one after another; each has the tiles tile0 … ntile-1 of nrow queries. */
struct query_steps {
    struct tile keys;
    int64_t kv, shared_by;
    int32_t tile0, ntile, n; /* tiles are counted from that of the keys; those before it have negative numbers */
};

/* One of these steps: its number, its head and its tile. next_step counts them up, because a division takes as long as
 * a product. */
struct step {
    int32_t number, head, tile;
};

__device__ __forceinline__ query_steps find_steps(const struct kern_attention_shape &s, const struct tile &keys,
                                                  int64_t nrow)
{
    query_steps w;
    w.keys = keys;
    w.kv = blockIdx.y;
    w.shared_by = (uint32_t)s.nhead / (uint32_t)s.nkv;
    w.tile0 = s.full ? -(int32_t)((keys.token - keys.begin) / nrow) : 0;
    w.ntile = (int32_t)((end_of_queries_seeing(s, keys) - keys.token + nrow - 1) / nrow);
    w.n = (int32_t)w.shared_by * (w.ntile - w.tile0);
    return w;
}

__device__ __forceinline__ step first_step(const query_steps &w)
{
    return step{ 0, (int32_t)(w.kv * w.shared_by), w.tile0 };
}

__device__ __forceinline__ step next_step(const query_steps &w, const step &at)
{
    const bool same = at.tile + 1 < w.ntile;
    return step{ at.number + 1, same ? at.head : at.head + 1, same ? at.tile + 1 : w.tile0 };
}

template <int N> __device__ __forceinline__ int64_t token_of(const query_steps &w, const step &at)
{
    return w.keys.token + at.tile * N;
}

/* The number of queries in the tile of a step. */
template <int N> __device__ __forceinline__ int64_t queries_of(const query_steps &w, const step &at)
{
    return rows_before(w.keys.end, token_of<N>(w, at), N);
}

/* Copies lse and delta asynchronously, together with the tiles. */
template <int N>
__device__ __forceinline__ void load_sums(query_sums<N> &to, const struct kern_attention_grad &g, const float *delta,
                                          const query_steps &w, const step &at)
{
    const int i = (int)threadIdx.x;
    const bool there = i < queries_of<N>(w, at);
    const int64_t from = at.head * g.shape.ntok + token_of<N>(w, at) + (there ? i : 0);
    if (i < N) {
        copy_word_async(&to.lse[i], g.lse + from, there);
        copy_word_async(&to.delta[i], delta + from, there);
    }
}

/* Turns scores (keys, queries) in s into weights, and their gradients in d into gradients of the scores. The factor
 * `scale` is left out; the caller multiplies the sums by it at the end. unit: one unit of a score, in base-2
 * logarithms. before: the distance from the first key of the accumulator to the first query. WHOLE: every query sees
 * every key. Queries beyond the end of the document add
 * nothing: their rows and gradients are zeros. */
template <bool WHOLE, int N>
__device__ __forceinline__ void softmax_grad_keys(accumulator<N> &s, accumulator<N> &d, const query_sums<N> &sums,
                                                  float unit, int before, uint32_t limit)
{
#pragma unroll
    for (int i = 0; i < N / 8; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int col = i * 8 + accumulator_col(e);
            const bool seen = WHOLE || (uint32_t)(before + col - accumulator_row(e)) < limit;
            const float weight = power_of_two(s.v[i][e] * unit - sums.lse[col] * LOG2E);
            s.v[i][e] = seen ? weight : 0.0f;
            d.v[i][e] = seen ? weight * (d.v[i][e] - sums.delta[col]) : 0.0f;
        }
}

/* The same for an accumulator of the tile t, which has nrow keys, and N queries of its document from query0 on. */
template <int N>
__device__ __forceinline__ void softmax_grad_keys(accumulator<N> &s, accumulator<N> &d, const query_sums<N> &sums,
                                                  const struct kern_attention_shape &shape, const struct tile &t,
                                                  int64_t nrow, int64_t query0)
{
    const int before = (int)(query0 - t.token) - first_row();
    if (all_visible(shape, query0, N, t.token, nrow))
        softmax_grad_keys<true>(s, d, sums, shape.scale * LOG2E, before, 0);
    else
        softmax_grad_keys<false>(s, d, sums, shape.scale * LOG2E, before, window_of(shape));
}

/* Sets the rows of keys that are padding to 0: nobody sees them. c: an accumulator of the tile t. */
template <int N>
__device__ __forceinline__ void clear_padding(accumulator<N> &c, const struct kern_attention_shape &s,
                                              const struct tile &t)
{
    const int nkey = (int)(end_of_keys(s, t.begin, t.end) - t.token) - first_row();
    if (!s.nkeys)
        return;
#pragma unroll
    for (int i = 0; i < N / 8; i++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (accumulator_row(e) >= nkey)
                c.v[i][e] = 0;
}

/* lse (base 2) and delta of the two rows of a thread. */
struct row_sums {
    float lse[2], delta[2];
};

__device__ __forceinline__ row_sums load_row_sums(const struct kern_attention_grad &g, const float *delta,
                                                  const struct tile &t, int64_t head)
{
    row_sums r = {};
    for (int half = 0; half < 2; half++) {
        const int64_t row = first_row() + accumulator_row(2 * half);
        if (row < t.n) {
            r.lse[half] = g.lse[head * g.shape.ntok + t.token + row] * LOG2E;
            r.delta[half] = delta[head * g.shape.ntok + t.token + row];
        }
    }
    return r;
}

/* Turns the gradients of the weights in d into gradients of the scores (queries, keys), without the factor `scale`.
 * before: the distance from the first key to the first query of the accumulator, from origin_of on. nkey: columns that
 * are keys and no padding. WHOLE: every query sees every key. */
template <bool WHOLE, int N>
__device__ __forceinline__ void softmax_grad_queries(const accumulator<N> &s, accumulator<N> &d, const row_sums &sums,
                                                     float unit, int before, uint32_t limit, int nkey)
{
#pragma unroll
    for (int i = 0; i < N / 8; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int col = i * 8 + accumulator_col(e);
            const bool seen = WHOLE || ((uint32_t)(before + accumulator_row(e) - col) < limit && col < nkey);
            const float weight = power_of_two(s.v[i][e] * unit - sums.lse[e / 2]);
            d.v[i][e] = seen ? weight * (d.v[i][e] - sums.delta[e / 2]) : 0.0f;
        }
}

/* The same for an accumulator of the tile w.queries, which has nrow queries, and N keys of its document from key0
 * on. */
template <int N>
__device__ __forceinline__ void softmax_grad_queries(const accumulator<N> &s, accumulator<N> &d, const row_sums &sums,
                                                     const struct kern_attention_shape &shape, const key_tiles &w,
                                                     int64_t nrow, int64_t key0)
{
    const int before = (int)(w.queries.token - key0) + first_row() + origin_of(shape), nkey = (int)(w.end - key0);
    if (nkey >= N && all_visible(shape, w.queries.token, nrow, key0, N))
        softmax_grad_queries<true>(s, d, sums, shape.scale * LOG2E, before, 0, 0);
    else
        softmax_grad_queries<false>(s, d, sums, shape.scale * LOG2E, before, window_of(shape), nkey);
}

#endif
