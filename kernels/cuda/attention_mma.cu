/* SPDX-License-Identifier: Apache-2.0 */
/* Forward pass of attention on tensor cores, by warps. A block of threads takes a tile of 64 queries of one head, 16
 * for each warp, and loops over the tiles of keys that they see. It loads the next tile while it multiplies the
 * current one. Weights are rounded to bf16 before the second product; sums and the softmax are fp32. */
#include "cuda/attention_warps.cuh"

namespace {

enum { KEYS = 64 }; /* per step */

template <int DIM> struct forward_memory {
    padded<DIM, WARPS_ROWS> q;
    padded<DIM, KEYS> k[2], v[2];
};

static_assert(sizeof(forward_memory<128>) <= ANY_SHARED_BYTES);

template <int DIM>
__global__ void __launch_bounds__(WARPS_THREADS) forward(struct kern_attention a, packing p, bool vectors)
{
    forward_memory<DIM> &m = shared_memory<forward_memory<DIM>>();
    const struct kern_attention_shape &s = a.shape;
    const int32_t number = tile_down(p);
    if (number < 0)
        return;
    const key_tiles w = find_key_tiles(s, find_tile<WARPS_ROWS>(p, number), KEYS);
    const struct tile &t = w.queries;
    accumulator<DIM> o = {};
    softmax_state r = begin_rows(s, w.head);
    float factor[2];
    load_tile(m.q, a.q, t.token, t.n, w.head, s.head_dim, vectors);
    load_keys<KEYS>(m, a, w, 0, vectors);
    copy_commit();
    for (int32_t i = 0; i < w.ntile; i++) {
        load_keys<KEYS>(m, a, w, i + 1, vectors);
        copy_commit();
        copy_wait<1>();
        __syncthreads();
        accumulator<KEYS> scores = {};
        multiply_rows(scores, m.q, m.k[i % 2]);
        apply_mask(scores, s, w, WARPS_ROWS, w.first + (int64_t)i * KEYS);
        online_softmax_step(scores, r, factor, s.scale * LOG2E);
        scale_rows(o, factor);
        multiply_accumulator(o, scores, m.v[i % 2]);
        __syncthreads(); /* the next load but one overwrites this stage */
    }
    copy_wait<0>();
    finish_rows(r, factor);
    store_accumulator(a.o, m.q, o, factor, t.token, t.n, w.head, s.head_dim, vectors);
    store_lse(a, t, w.head, r);
}

} // namespace

void cuda_attention_mma(struct kern_stream *stream, const struct kern_attention *a, const struct packing *p,
                        bool vectors)
{
    const dim3 grid((unsigned)a->shape.table.ntile, (unsigned)a->shape.nhead);
#define FORWARD(DIM) launch(stream, forward<DIM>, grid, WARPS_THREADS, sizeof(forward_memory<DIM>), *a, *p, vectors)
    FOR_DIM(a->shape.head_dim, FORWARD);
#undef FORWARD
}
