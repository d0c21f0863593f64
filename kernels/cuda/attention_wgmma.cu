/* SPDX-License-Identifier: Apache-2.0 */
/* Attention's forward by warpgroups: a block of threads has a tile of 128 queries of a head and goes along the tiles of keys that they see. A step multiplies the
 * queries with a tile of keys and, at the same time, the weights of the tile before with its values; the softmax of the step is computed while the latter goes on
 * (as Shah et al. 2024, "FlashAttention-3", 3.2). The next tiles are on their way meanwhile. */
#include "cuda/attention_groups.cuh"

namespace {

enum { KEYS = 128 }; /* of a step */

template <int DIM> struct forward_memory {
    swizzled<DIM, GROUPS_ROWS> q;
    swizzled<DIM, KEYS> k[2], v[2];
    uint32_t settled[GROUPS_THREADS];
};

static_assert(sizeof(forward_memory<128>) <= HOPPER_SHARED_BYTES);

template <int DIM>
__device__ __forceinline__ void load(swizzled<DIM, KEYS> (&to)[2], const struct kern_cmat &from, const struct kern_attention_shape &s, const way &w, int32_t i,
                                     bool vectors)
{
    const int64_t token = w.first + (int64_t)i * KEYS;
    if (i < w.ntile)
        load_tile(to[i % 2], from, token, rows_from(w.queries, token, KEYS), w.kv, s.head_dim, vectors);
}

template <int DIM> __global__ void __launch_bounds__(GROUPS_THREADS, 1) forward(struct kern_attention a, packing p, bool vectors)
{
    forward_memory<DIM> &m = shared_memory<forward_memory<DIM>>();
    const struct kern_attention_shape &s = a.shape;
    const int32_t number = tile_down(p);
    if (number < 0)
        return;
    const way w = find_way(s, find_tile<GROUPS_ROWS>(p, number), KEYS);
    const struct tile &t = w.queries;
    part<DIM> o = {};
    part<KEYS> scores;
    held<DIM> queries;
    held<KEYS> weights;
    running r = {{-INFINITY, -INFINITY}, {0, 0}};
    float factor[2];
    load_tile(m.q, a.q, t.token, t.n, w.head, s.head_dim, vectors);
    load(m.k, a.k, s, w, 0, vectors);
    meet();
    hold_rows(queries, m.q);
    begin(scores);
    start_rows(scores, queries, m.k[0]);
    group_commit();
    load(m.k, a.k, s, w, 1, vectors);
    load(m.v, a.v, s, w, 0, vectors);
    finish<0>(scores);
    hide(scores, s, t, GROUPS_ROWS, w.first);
    soften(scores, r, factor, s.scale * LOG2E);
    hold_part(weights, scores);
    for (int32_t i = 1; i < w.ntile; i++) {
        meet();
        begin(scores);
        start_rows(scores, queries, m.k[i % 2]);
        group_commit();
        begin(o);
        start_part(o, weights, m.v[(i - 1) % 2]);
        group_commit();
        load(m.k, a.k, s, w, i + 1, vectors);
        load(m.v, a.v, s, w, i, vectors);
        finish<1>(scores);
        hide(scores, s, t, GROUPS_ROWS, w.first + (int64_t)i * KEYS);
        soften(scores, r, factor, s.scale * LOG2E);
        settle(m.settled, bits_of(r.sum[0] + r.sum[1]));
        finish<0>(o);
        scale_rows(o, factor);
        hold_part(weights, scores);
    }
    meet();
    begin(o);
    start_part(o, weights, m.v[(w.ntile - 1) % 2]);
    group_commit();
    finish<0>(o);
    finish_rows(r, factor);
    store_part(a.o, m.q, o, factor, t.token, t.n, w.head, s.head_dim, vectors);
    store_lse(a, t, w.head, r);
}

} // namespace

void cuda_attention_wgmma(struct kern_stream *stream, const struct kern_attention *a, const struct packing *p, bool vectors)
{
    const dim3 grid((unsigned)a->shape.table.ntile, (unsigned)a->shape.nhead);
#define FORWARD(DIM) launch(stream, forward<DIM>, grid, GROUPS_THREADS, sizeof(forward_memory<DIM>), *a, *p, vectors)
    FOR_DIM(a->shape.head_dim, FORWARD);
#undef FORWARD
}
