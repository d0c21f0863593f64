/* SPDX-License-Identifier: Apache-2.0 */
/* Forward pass of attention by warpgroups. A block of threads takes a tile of 128 queries of one head and loops over
 * the tiles of keys that they see. Each step starts two products: the queries with a tile of keys, and the weights of
 * the previous tile with its values. The softmax of the step runs while the second product is in flight (Shah et al.
 * 2024, "FlashAttention-3", section 3.2). The next tiles are loaded meanwhile. */
#include "cuda/attention_groups.cuh"

namespace {

enum { KEYS = 128 }; /* per step */

template <int DIM> struct forward_memory {
    swizzled<DIM, GROUPS_ROWS> q;
    swizzled<DIM, KEYS> k[2], v[2];
    uint32_t witness[GROUPS_THREADS];
};

static_assert(sizeof(forward_memory<128>) <= HOPPER_SHARED_BYTES);

template <int DIM>
__device__ __forceinline__ void load(swizzled<DIM, KEYS> (&to)[2], const struct kern_cmat &from,
                                     const struct kern_attention_shape &s, const key_tiles &w, int32_t i, bool vectors)
{
    const int64_t token = w.first + (int64_t)i * KEYS;
    if (i < w.ntile)
        load_tile(to[i % 2], from, token, rows_before(w.end, token, KEYS), w.kv, s.head_dim, vectors);
}

template <int DIM>
__global__ void __launch_bounds__(GROUPS_THREADS, 1) forward(struct kern_attention a, packing p, bool vectors)
{
    forward_memory<DIM> &m = shared_memory<forward_memory<DIM>>();
    const struct kern_attention_shape &s = a.shape;
    const int32_t number = tile_down(p);
    if (number < 0)
        return;
    const key_tiles w = find_key_tiles(s, find_tile<GROUPS_ROWS>(p, number), KEYS);
    const struct tile &t = w.queries;
    accumulator<DIM> o = {};
    accumulator<KEYS> scores;
    a_fragment<DIM> queries;
    a_fragment<KEYS> weights;
    softmax_state r = begin_rows(s, w.head);
    float factor[2];
    load_tile(m.q, a.q, t.token, t.n, w.head, s.head_dim, vectors);
    load(m.k, a.k, s, w, 0, vectors);
    wait_for_copies();
    load_a_fragment(queries, m.q);
    begin(scores);
    start_rows(scores, queries, m.k[0]);
    group_commit();
    load(m.k, a.k, s, w, 1, vectors);
    load(m.v, a.v, s, w, 0, vectors);
    finish<0>(scores);
    apply_mask(scores, s, w, GROUPS_ROWS, w.first);
    online_softmax_step(scores, r, factor, s.scale * LOG2E);
    narrow_to_fragment(weights, scores);
    for (int32_t i = 1; i < w.ntile; i++) {
        wait_for_copies();
        begin(scores);
        start_rows(scores, queries, m.k[i % 2]);
        group_commit();
        begin(o);
        start_accumulator(o, weights, m.v[(i - 1) % 2]);
        group_commit();
        load(m.k, a.k, s, w, i + 1, vectors);
        load(m.v, a.v, s, w, i, vectors);
        finish<1>(scores);
        apply_mask(scores, s, w, GROUPS_ROWS, w.first + (int64_t)i * KEYS);
        online_softmax_step(scores, r, factor, s.scale * LOG2E);
        keep_before_wait(m.witness, bits_of(r.sum[0] + r.sum[1]));
        finish<0>(o);
        scale_rows(o, factor);
        narrow_to_fragment(weights, scores);
    }
    wait_for_copies();
    begin(o);
    start_accumulator(o, weights, m.v[(w.ntile - 1) % 2]);
    group_commit();
    finish<0>(o);
    finish_rows(r, factor);
    store_accumulator(a.o, m.q, o, factor, t.token, t.n, w.head, s.head_dim, vectors);
    store_lse(a, t, w.head, r);
}

} // namespace

void cuda_attention_wgmma(struct kern_stream *stream, const struct kern_attention *a, const struct packing *p,
                          bool vectors)
{
    const dim3 grid((unsigned)a->shape.table.ntile, (unsigned)a->shape.nhead);
#define FORWARD(DIM) launch(stream, forward<DIM>, grid, GROUPS_THREADS, sizeof(forward_memory<DIM>), *a, *p, vectors)
    FOR_DIM(a->shape.head_dim, FORWARD);
#undef FORWARD
}
