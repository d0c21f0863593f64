/* SPDX-License-Identifier: Apache-2.0 */
/* Backward pass of attention by warpgroups, in the same two passes as by warps (attention_mma_grad.cu). Each step
 * starts the products for its own scores and those with the weights of the previous step; it computes its own weights
 * while the latter are in flight. The next tiles are loaded while products are in flight, except in key_grads: it loads
 * them first, as it has no registers left later. */
#include "cuda/attention_groups.cuh"

namespace {

enum { COLS = 64, STAGES = 3 }; /* queries or keys per step; tiles in flight: previous, current, next */

template <int DIM> struct key_memory {
    swizzled<DIM, GROUPS_ROWS> k, v;
    swizzled<DIM, COLS> q[STAGES], d_o[STAGES];
    query_sums<COLS> sums[STAGES];
    uint32_t witness[GROUPS_THREADS];
};

template <int DIM> struct query_memory {
    swizzled<DIM, GROUPS_ROWS> q, d_o;
    swizzled<DIM, COLS> k[STAGES], v[STAGES];
    uint32_t witness[GROUPS_THREADS];
};

static_assert(sizeof(key_memory<128>) <= HOPPER_SHARED_BYTES && sizeof(query_memory<128>) <= HOPPER_SHARED_BYTES);

template <int DIM>
__device__ __forceinline__ void load_step(key_memory<DIM> &m, const struct kern_attention_grad &g, const float *delta,
                                          const query_steps &w, const step &at, bool vectors)
{
    const int64_t token = token_of<COLS>(w, at), n = queries_of<COLS>(w, at);
    const int stage = at.number % STAGES;
    if (at.number >= w.n)
        return;
    load_tile(m.q[stage], g.q, token, n, at.head, g.shape.head_dim, vectors);
    load_tile(m.d_o[stage], g.d_o, token, n, at.head, g.shape.head_dim, vectors);
    load_sums(m.sums[stage], g, delta, w, at);
}

/* Starts the scores of a step, a · xᵀ, and the gradients of its weights, b · yᵀ. a and b are fragments in registers,
 * or rows of tiles. */
template <int DIM>
__device__ __forceinline__ void start_scores(accumulator<COLS> &scores, accumulator<COLS> &grads,
                                             const a_fragment<DIM> &a, const a_fragment<DIM> &b,
                                             const swizzled<DIM, COLS> &x, const swizzled<DIM, COLS> &y)
{
    begin(scores, grads);
    start_rows(scores, a, x);
    start_rows(grads, b, y);
    group_commit();
}

template <int DIM>
__device__ __forceinline__ void start_scores(accumulator<COLS> &scores, accumulator<COLS> &grads,
                                             const key_memory<DIM> &m, int row0, int stage)
{
    begin(scores, grads);
    start_rows(scores, m.k, row0, m.q[stage]);
    start_rows(grads, m.v, row0, m.d_o[stage]);
    group_commit();
}

/* Starts the products that add a step to the gradients of keys and values. */
template <int DIM>
__device__ __forceinline__ void start_sums(accumulator<DIM> &dk, accumulator<DIM> &dv, const a_fragment<COLS> &d_scores,
                                           const a_fragment<COLS> &weights, const key_memory<DIM> &m, int32_t i)
{
    begin(dv, dk);
    start_accumulator(dv, weights, m.d_o[i % STAGES]);
    start_accumulator(dk, d_scores, m.q[i % STAGES]);
    group_commit();
}

template <int DIM>
__global__ void __launch_bounds__(GROUPS_THREADS, 1) key_grads(struct kern_attention_grad g, packing p, bool vectors)
{
    key_memory<DIM> &m = shared_memory<key_memory<DIM>>();
    const struct kern_attention_shape &s = g.shape;
    const int32_t number = tile_up(p);
    if (number < 0)
        return;
    const query_steps w = find_steps(s, find_tile<GROUPS_ROWS>(p, number), COLS);
    const int row0 = group_row();
    step at = first_step(w);
    accumulator<DIM> dk = {}, dv = {};
    accumulator<COLS> scores, grads;
    a_fragment<COLS> weights, d_scores;
    load_tile(m.k, g.k, w.keys.token, w.keys.n, w.kv, s.head_dim, vectors);
    load_tile(m.v, g.v, w.keys.token, w.keys.n, w.kv, s.head_dim, vectors);
    load_step(m, g, p.delta, w, at, vectors);
    wait_for_copies();
    at = next_step(w, at);
    load_step(m, g, p.delta, w, at, vectors);
    start_scores(scores, grads, m, row0, 0);
    finish<0>(scores, grads);
    softmax_grad_keys(scores, grads, m.sums[0], s, w.keys, GROUPS_ROWS, w.keys.token);
    narrow_to_fragment(weights, scores);
    narrow_to_fragment(d_scores, grads);
    for (int32_t i = 1; i < w.n; i++) {
        wait_for_copies();
        const step next = next_step(w, at);
        load_step(m, g, p.delta, w, next, vectors);
        start_scores(scores, grads, m, row0, i % STAGES);
        start_sums(dk, dv, d_scores, weights, m, i - 1);
        finish<1>(scores, grads);
        softmax_grad_keys(scores, grads, m.sums[i % STAGES], s, w.keys, GROUPS_ROWS, token_of<COLS>(w, at));
        at = next;
        keep_before_wait(m.witness, xor_of(grads));
        finish<0>(dk, dv);
        narrow_to_fragment(weights, scores);
        narrow_to_fragment(d_scores, grads);
    }
    start_sums(dk, dv, d_scores, weights, m, w.n - 1);
    finish<0>(dk, dv);
    __syncthreads(); /* store_accumulator overwrites k and v */
    clear_padding(dk, s, w.keys);
    clear_padding(dv, s, w.keys);
    const float one[2] = { 1, 1 }, scale[2] = { s.scale, s.scale };
    store_accumulator(g.dk, m.k, dk, scale, w.keys.token, w.keys.n, w.kv, s.head_dim, vectors);
    store_accumulator(g.dv, m.v, dv, one, w.keys.token, w.keys.n, w.kv, s.head_dim, vectors);
}

template <int DIM>
__device__ __forceinline__ void load_keys(query_memory<DIM> &m, const struct kern_attention_grad &g, const key_tiles &w,
                                          int32_t i, bool vectors)
{
    const int64_t token = w.first + (int64_t)i * COLS, n = rows_before(w.end, token, COLS);
    if (i >= w.ntile)
        return;
    load_tile(m.k[i % STAGES], g.k, token, n, w.kv, g.shape.head_dim, vectors);
    load_tile(m.v[i % STAGES], g.v, token, n, w.kv, g.shape.head_dim, vectors);
}

template <int DIM>
__global__ void __launch_bounds__(GROUPS_THREADS, 1) query_grads(struct kern_attention_grad g, packing p, bool vectors)
{
    query_memory<DIM> &m = shared_memory<query_memory<DIM>>();
    const struct kern_attention_shape &s = g.shape;
    const int32_t number = tile_down(p);
    if (number < 0)
        return;
    const key_tiles w = find_key_tiles(s, find_tile<GROUPS_ROWS>(p, number), COLS);
    const struct tile &t = w.queries;
    const row_sums sums = load_row_sums(g, p.delta, t, w.head);
    accumulator<DIM> dq = {};
    accumulator<COLS> scores, grads;
    a_fragment<DIM> q, d_o;
    a_fragment<COLS> d_scores;
    load_tile(m.q, g.q, t.token, t.n, w.head, s.head_dim, vectors);
    load_tile(m.d_o, g.d_o, t.token, t.n, w.head, s.head_dim, vectors);
    load_keys(m, g, w, 0, vectors);
    wait_for_copies();
    load_a_fragment(q, m.q);
    load_a_fragment(d_o, m.d_o);
    start_scores(scores, grads, q, d_o, m.k[0], m.v[0]);
    load_keys(m, g, w, 1, vectors);
    finish<0>(scores, grads);
    softmax_grad_queries(scores, grads, sums, s, w, GROUPS_ROWS, w.first);
    narrow_to_fragment(d_scores, grads);
    for (int32_t i = 1; i < w.ntile; i++) {
        wait_for_copies();
        start_scores(scores, grads, q, d_o, m.k[i % STAGES], m.v[i % STAGES]);
        begin(dq);
        start_accumulator(dq, d_scores, m.k[(i - 1) % STAGES]);
        group_commit();
        load_keys(m, g, w, i + 1, vectors);
        finish<1>(scores, grads);
        softmax_grad_queries(scores, grads, sums, s, w, GROUPS_ROWS, w.first + (int64_t)i * COLS);
        keep_before_wait(m.witness, xor_of(grads));
        finish<0>(dq);
        narrow_to_fragment(d_scores, grads);
    }
    begin(dq);
    start_accumulator(dq, d_scores, m.k[(w.ntile - 1) % STAGES]);
    group_commit();
    finish<0>(dq);
    const float scale[2] = { s.scale, s.scale };
    store_accumulator(g.dq, m.q, dq, scale, t.token, t.n, w.head, s.head_dim, vectors);
}

} // namespace

void cuda_attention_wgmma_grad(struct kern_stream *stream, const struct kern_attention_grad *g, const struct packing *p,
                               bool vectors)
{
    const unsigned ntile = (unsigned)g->shape.table.ntile;
    const dim3 keys(ntile, (unsigned)g->shape.nkv), queries(ntile, (unsigned)g->shape.nhead);
#define KEYS(DIM) launch(stream, key_grads<DIM>, keys, GROUPS_THREADS, sizeof(key_memory<DIM>), *g, *p, vectors)
    FOR_DIM(g->shape.head_dim, KEYS);
#undef KEYS
#define QUERIES(DIM) \
    launch(stream, query_grads<DIM>, queries, GROUPS_THREADS, sizeof(query_memory<DIM>), *g, *p, vectors)
    FOR_DIM(g->shape.head_dim, QUERIES);
#undef QUERIES
}
