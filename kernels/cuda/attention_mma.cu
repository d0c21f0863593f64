/* Attention's forward on tensor cores: a block of threads has a tile of 64 queries of a head, each warp 16 of them, and goes along the tiles of keys that they
 * see, the next one on its way while one is multiplied. Weights are rounded to bf16 before they are multiplied; sums and the softmax are fp32. */
#include "cuda/attention_tiles.cuh"

namespace {

template <int DIM> struct forward_memory {
    tile_memory<DIM> q, k[2], v[2];
};

/* Of a warp's rows: each thread has a part of two, 8 apart. */
struct running {
    float top[2], sum[2];
};

/* Scores, in units of the base-2 logarithm, become weights; what was summed before is brought to the new maximum. */
template <int DIM> __device__ __forceinline__ void soften(part<TILE_ROWS> &s, running &r, part<DIM> &o, float unit)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float top = -INFINITY, sum = 0;
#pragma unroll
        for (int i = 0; i < TILE_ROWS / 8; i++)
            top = fmaxf(top, fmaxf(s.v[i][2 * half], s.v[i][2 * half + 1]));
        top = fmaxf(r.top[half], row_max(top));
        const float base = top == -INFINITY ? 0 : top * unit, factor = exp2f(r.top[half] * unit - base);
#pragma unroll
        for (int i = 0; i < TILE_ROWS / 8; i++)
#pragma unroll
            for (int e = 2 * half; e < 2 * half + 2; e++)
                sum += s.v[i][e] = exp2f(s.v[i][e] * unit - base);
        r.sum[half] = r.sum[half] * factor + row_sum(sum);
        r.top[half] = top;
#pragma unroll
        for (int i = 0; i < DIM / 8; i++) {
            o.v[i][2 * half] *= factor;
            o.v[i][2 * half + 1] *= factor;
        }
    }
}

__device__ __forceinline__ void hide(part<TILE_ROWS> &s, const struct kern_attention_shape &shape, int64_t query0, int64_t key0)
{
#pragma unroll
    for (int i = 0; i < TILE_ROWS / 8; i++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (!sees(shape, query0 + part_row(e), key0 + i * 8 + part_col(e)))
                s.v[i][e] = -INFINITY;
}

/* Whether every query of the tile sees every key of that one. */
__device__ __forceinline__ bool all_seen(const struct kern_attention_shape &s, const struct tile &q, int64_t key0)
{
    return sees(s, q.token, key0 + TILE_ROWS - 1) && sees(s, q.token + TILE_ROWS - 1, key0);
}

template <int DIM> __global__ void __launch_bounds__(TILE_THREADS) forward(struct kern_attention a, packing p, bool vectors)
{
    forward_memory<DIM> &m = shared_memory<forward_memory<DIM>>();
    const struct kern_attention_shape &s = a.shape;
    const struct tile t = find_tile(p, p.ntile - 1 - (int32_t)blockIdx.x); /* later tiles see more: they start first */
    const int64_t head = blockIdx.y, kv = head / (s.nhead / s.nkv), first = first_seen(s, t);
    const int row0 = (int)threadIdx.x / WARP * 16;
    const float unit = s.scale * 1.44269504f; /* of log2(e) */
    part<DIM> o = {};
    running r = {{-INFINITY, -INFINITY}, {0, 0}};
    load_tile<DIM>(m.q, a.q, t.token, t.n, head, s.head_dim, vectors);
    load_keys<DIM>(m, a, t, first, kv, vectors);
    copy_commit();
    for (int64_t key = first; key < t.token + t.n; key += TILE_ROWS) {
        const int stage = (int)((key - t.begin) / TILE_ROWS % 2);
        if (key + TILE_ROWS < t.token + t.n)
            load_keys<DIM>(m, a, t, key + TILE_ROWS, kv, vectors);
        copy_commit();
        copy_wait<1>();
        __syncthreads();
        part<TILE_ROWS> scores = {};
        multiply_rows<DIM>(scores, m.q, row0, m.k[stage]);
        if (!all_seen(s, t, key))
            hide(scores, s, t.token + row0, key);
        soften<DIM>(scores, r, o, unit);
        multiply_part<DIM>(o, scores, m.v[stage]);
        __syncthreads(); /* the next but one is loaded over this one */
    }
    copy_wait<0>();
    const float factor[2] = {1.0f / r.sum[0], 1.0f / r.sum[1]};
    store_part<DIM>(a.o, m.q, o, factor, t.token, t.n, head, s.head_dim, vectors);
    for (int half = 0; a.lse && threadIdx.x % 4 == 0 && half < 2; half++)
        if (row0 + part_row(2 * half) < t.n)
            a.lse[head * s.ntok + t.token + row0 + part_row(2 * half)] = r.top[half] * s.scale + logf(r.sum[half]);
}

enum { MOST_HEADS = 65535 }; /* of a grid's second dimension */

} // namespace

bool cuda_attention_fits_mma(int64_t head_dim, std::initializer_list<operand> all)
{
    return head_dim <= 128 && types_of(all) == ALL_BF16;
}

void cuda_attention_mma(struct kern_stream *stream, const struct kern_attention *a, const struct packing *p)
{
    const struct kern_attention_shape *s = &a->shape;
    const bool vectors = aligned({a->q, a->k, a->v, a->o}) && s->head_dim % 8 == 0;
    const dim3 grid((unsigned)p->ntile, (unsigned)s->nhead);
    if (!cuda_check(stream, s->nhead <= MOST_HEADS, "attention: more than 65535 heads"))
        return;
#define FORWARD(DIM) launch(stream, forward<DIM>, grid, TILE_THREADS, sizeof(forward_memory<DIM>), *a, *p, vectors)
    FOR_DIM(s->head_dim, FORWARD);
#undef FORWARD
}
