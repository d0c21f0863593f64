/* SPDX-License-Identifier: Apache-2.0 */
/* Backward pass of attention on tensor cores, by warps, in two passes without atomics. The first computes the gradients
 * of keys and values: a block of threads takes a tile of keys and loops, in order, over the query heads that share them
 * and the tiles of queries that see them. The second computes the gradients of queries, which may overwrite operands of
 * the first. Both passes recompute the scores. */
#include "cuda/attention_warps.cuh"

namespace {

enum { COLS = 32 }; /* queries or keys per step */

template <int DIM> struct key_memory {
    padded<DIM, WARPS_ROWS> k, v;
    padded<DIM, COLS> q[2], d_o[2];
    query_sums<COLS> sums[2];
};

template <int DIM> struct query_memory {
    padded<DIM, WARPS_ROWS> q, d_o;
    padded<DIM, COLS> k[2], v[2];
};

static_assert(sizeof(key_memory<128>) <= ANY_SHARED_BYTES && sizeof(query_memory<128>) <= ANY_SHARED_BYTES);

template <int DIM>
__device__ __forceinline__ void load_step(key_memory<DIM> &m, const struct kern_attention_grad &g, const float *delta,
                                          const query_steps &w, const step &at, bool vectors)
{
    const int64_t token = token_of<COLS>(w, at), n = queries_of<COLS>(w, at);
    const int stage = at.number % 2;
    if (at.number >= w.n)
        return;
    load_tile(m.q[stage], g.q, token, n, at.head, g.shape.head_dim, vectors);
    load_tile(m.d_o[stage], g.d_o, token, n, at.head, g.shape.head_dim, vectors);
    load_sums(m.sums[stage], g, delta, w, at);
}

template <int DIM>
__global__ void __launch_bounds__(WARPS_THREADS) key_grads(struct kern_attention_grad g, packing p, bool vectors)
{
    key_memory<DIM> &m = shared_memory<key_memory<DIM>>();
    const struct kern_attention_shape &s = g.shape;
    const int32_t number = tile_up(p);
    if (number < 0)
        return;
    const query_steps w = find_steps(s, find_tile<WARPS_ROWS>(p, number), COLS);
    step at = first_step(w);
    accumulator<DIM> dk = {}, dv = {};
    load_tile(m.k, g.k, w.keys.token, w.keys.n, w.kv, s.head_dim, vectors);
    load_tile(m.v, g.v, w.keys.token, w.keys.n, w.kv, s.head_dim, vectors);
    load_step(m, g, p.delta, w, at, vectors);
    copy_commit();
    for (int32_t i = 0; i < w.n; i++) {
        const int64_t token = token_of<COLS>(w, at);
        at = next_step(w, at);
        load_step(m, g, p.delta, w, at, vectors);
        copy_commit();
        copy_wait<1>();
        __syncthreads();
        accumulator<COLS> weights = {}, grads = {};
        multiply_rows(weights, m.k, m.q[i % 2]);
        multiply_rows(grads, m.v, m.d_o[i % 2]);
        softmax_grad_keys(weights, grads, m.sums[i % 2], s, w.keys, WARPS_ROWS, token);
        multiply_accumulator(dv, weights, m.d_o[i % 2]);
        multiply_accumulator(dk, grads, m.q[i % 2]);
        __syncthreads();
    }
    copy_wait<0>();
    clear_padding(dk, s, w.keys);
    clear_padding(dv, s, w.keys);
    const float one[2] = { 1, 1 }, scale[2] = { s.scale, s.scale };
    store_accumulator(g.dk, m.k, dk, scale, w.keys.token, w.keys.n, w.kv, s.head_dim, vectors);
    store_accumulator(g.dv, m.v, dv, one, w.keys.token, w.keys.n, w.kv, s.head_dim, vectors);
}

template <int DIM>
__global__ void __launch_bounds__(WARPS_THREADS) query_grads(struct kern_attention_grad g, packing p, bool vectors)
{
    query_memory<DIM> &m = shared_memory<query_memory<DIM>>();
    const struct kern_attention_shape &s = g.shape;
    const int32_t number = tile_down(p);
    if (number < 0)
        return;
    const key_tiles w = find_key_tiles(s, find_tile<WARPS_ROWS>(p, number), COLS);
    const struct tile &t = w.queries;
    const row_sums sums = load_row_sums(g, p.delta, t, w.head);
    accumulator<DIM> dq = {};
    load_tile(m.q, g.q, t.token, t.n, w.head, s.head_dim, vectors);
    load_tile(m.d_o, g.d_o, t.token, t.n, w.head, s.head_dim, vectors);
    load_keys<COLS>(m, g, w, 0, vectors);
    copy_commit();
    for (int32_t i = 0; i < w.ntile; i++) {
        load_keys<COLS>(m, g, w, i + 1, vectors);
        copy_commit();
        copy_wait<1>();
        __syncthreads();
        accumulator<COLS> scores = {}, grads = {};
        multiply_rows(scores, m.q, m.k[i % 2]);
        multiply_rows(grads, m.d_o, m.v[i % 2]);
        softmax_grad_queries(scores, grads, sums, s, w, WARPS_ROWS, w.first + (int64_t)i * COLS);
        multiply_accumulator(dq, grads, m.k[i % 2]);
        __syncthreads();
    }
    copy_wait<0>();
    const float scale[2] = { s.scale, s.scale };
    store_accumulator(g.dq, m.q, dq, scale, t.token, t.n, w.head, s.head_dim, vectors);
}

} // namespace

void cuda_attention_mma_grad(struct kern_stream *stream, const struct kern_attention_grad *g, const struct packing *p,
                             bool vectors)
{
    const unsigned ntile = (unsigned)g->shape.table.ntile;
    const dim3 keys(ntile, (unsigned)g->shape.nkv), queries(ntile, (unsigned)g->shape.nhead);
#define KEYS(DIM) launch(stream, key_grads<DIM>, keys, WARPS_THREADS, sizeof(key_memory<DIM>), *g, *p, vectors)
    FOR_DIM(g->shape.head_dim, KEYS);
#undef KEYS
#define QUERIES(DIM) \
    launch(stream, query_grads<DIM>, queries, WARPS_THREADS, sizeof(query_memory<DIM>), *g, *p, vectors)
    FOR_DIM(g->shape.head_dim, QUERIES);
#undef QUERIES
}
