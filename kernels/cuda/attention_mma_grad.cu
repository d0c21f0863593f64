/* Attention's backward on tensor cores, in two passes without atomics: keys and values first, a block of threads for a tile of keys, over the query heads that
 * share them and the tiles of queries that see them, in order; then queries, which may lie over what the first pass read. Scores are computed in both. */
#include "cuda/attention_tiles.cuh"

namespace {

constexpr float LOG2E = 1.44269504f;

/* lse, in base 2, and delta of a tile's queries; zeros beyond. */
struct query_sums {
    float lse[TILE_ROWS], delta[TILE_ROWS];
};

template <int DIM> struct key_memory {
    tile_memory<DIM> k, v, q[2], d_o[2];
    query_sums sums[2];
};

template <int DIM> struct query_memory {
    tile_memory<DIM> q, d_o, k[2], v[2];
};

/* A block's work: step i is a tile of queries of a head. */
struct steps {
    struct tile keys;
    int64_t kv, shared_by, ntile, n;
};

__device__ __forceinline__ steps find_steps(const struct kern_attention_shape &s, const struct packing &p)
{
    steps w;
    w.keys = find_tile(p, (int32_t)blockIdx.x);
    w.kv = blockIdx.y;
    w.shared_by = s.nhead / s.nkv;
    const int64_t last = w.keys.token + w.keys.n - 1; /* key */
    const int64_t seen = s.window && last + s.window < w.keys.end ? last + s.window : w.keys.end;
    w.ntile = (seen - w.keys.token + TILE_ROWS - 1) / TILE_ROWS;
    w.n = w.shared_by * w.ntile;
    return w;
}

template <int DIM> __device__ __forceinline__ void load_step(key_memory<DIM> &m, const struct kern_attention_grad &g, const struct packing &p, const steps &w, int64_t i,
                                                             bool vectors)
{
    const int64_t head = w.kv * w.shared_by + i / w.ntile, token = w.keys.token + i % w.ntile * TILE_ROWS, n = rows_from(w.keys, token);
    load_tile<DIM>(m.q[i % 2], g.q, token, n, head, g.shape.head_dim, vectors);
    load_tile<DIM>(m.d_o[i % 2], g.d_o, token, n, head, g.shape.head_dim, vectors);
    if (threadIdx.x < TILE_ROWS) {
        const bool there = (int64_t)threadIdx.x < n;
        m.sums[i % 2].lse[threadIdx.x] = there ? g.lse[head * g.shape.ntok + token + threadIdx.x] * LOG2E : 0.0f;
        m.sums[i % 2].delta[threadIdx.x] = there ? p.delta[head * g.shape.ntok + token + threadIdx.x] : 0.0f;
    }
}

/* Scores (keys, queries) become weights, and what their products gave the weights' gradients. */
__device__ __forceinline__ void weigh_keys(part<TILE_ROWS> &s, part<TILE_ROWS> &d, const query_sums &sums, const struct kern_attention_shape &shape, const struct tile &t,
                                           int64_t key0, int64_t query0)
{
#pragma unroll
    for (int i = 0; i < TILE_ROWS / 8; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int col = i * 8 + part_col(e);
            const bool seen = query0 + col < t.end && sees(shape, query0 + col, key0 + part_row(e));
            const float weight = seen ? exp2f(s.v[i][e] * (shape.scale * LOG2E) - sums.lse[col]) : 0.0f;
            s.v[i][e] = weight;
            d.v[i][e] = seen ? weight * (d.v[i][e] - sums.delta[col]) * shape.scale : 0.0f;
        }
}

template <int DIM> __global__ void __launch_bounds__(TILE_THREADS) key_grads(struct kern_attention_grad g, packing p, bool vectors)
{
    key_memory<DIM> &m = shared_memory<key_memory<DIM>>();
    const struct kern_attention_shape &s = g.shape;
    const steps w = find_steps(s, p);
    const int row0 = (int)threadIdx.x / WARP * 16;
    part<DIM> dk = {}, dv = {};
    load_tile<DIM>(m.k, g.k, w.keys.token, w.keys.n, w.kv, s.head_dim, vectors);
    load_tile<DIM>(m.v, g.v, w.keys.token, w.keys.n, w.kv, s.head_dim, vectors);
    load_step<DIM>(m, g, p, w, 0, vectors);
    copy_commit();
    for (int64_t i = 0; i < w.n; i++) {
        const int stage = (int)(i % 2);
        if (i + 1 < w.n)
            load_step<DIM>(m, g, p, w, i + 1, vectors);
        copy_commit();
        copy_wait<1>();
        __syncthreads();
        part<TILE_ROWS> weights = {}, grads = {};
        multiply_rows<DIM>(weights, m.k, row0, m.q[stage]);
        multiply_rows<DIM>(grads, m.v, row0, m.d_o[stage]);
        weigh_keys(weights, grads, m.sums[stage], s, w.keys, w.keys.token + row0, w.keys.token + i % w.ntile * TILE_ROWS);
        multiply_part<DIM>(dv, weights, m.d_o[stage]);
        multiply_part<DIM>(dk, grads, m.q[stage]);
        __syncthreads();
    }
    copy_wait<0>();
    const float one[2] = {1, 1};
    store_part<DIM>(g.dk, m.k, dk, one, w.keys.token, w.keys.n, w.kv, s.head_dim, vectors);
    store_part<DIM>(g.dv, m.v, dv, one, w.keys.token, w.keys.n, w.kv, s.head_dim, vectors);
}

/* A thread's two rows' lse, in base 2, and delta. */
struct row_sums {
    float lse[2], delta[2];
};

__device__ __forceinline__ row_sums load_sums(const struct kern_attention_grad &g, const struct packing &p, const struct tile &t, int64_t head, int row0)
{
    row_sums r = {};
    for (int half = 0; half < 2; half++) {
        const int64_t row = row0 + part_row(2 * half);
        if (row < t.n) {
            r.lse[half] = g.lse[head * g.shape.ntok + t.token + row] * LOG2E;
            r.delta[half] = p.delta[head * g.shape.ntok + t.token + row];
        }
    }
    return r;
}

/* Scores (queries, keys) and the weights' gradients become the scores' gradients, in d. */
__device__ __forceinline__ void weigh_queries(const part<TILE_ROWS> &s, part<TILE_ROWS> &d, const row_sums &sums, const struct kern_attention_shape &shape,
                                              const struct tile &t, int row0, int64_t key0)
{
#pragma unroll
    for (int i = 0; i < TILE_ROWS / 8; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int row = row0 + part_row(e);
            const bool seen = row < t.n && sees(shape, t.token + row, key0 + i * 8 + part_col(e));
            const float weight = exp2f(s.v[i][e] * (shape.scale * LOG2E) - sums.lse[e / 2]);
            d.v[i][e] = seen ? weight * (d.v[i][e] - sums.delta[e / 2]) * shape.scale : 0.0f;
        }
}

template <int DIM> __global__ void __launch_bounds__(TILE_THREADS) query_grads(struct kern_attention_grad g, packing p, bool vectors)
{
    query_memory<DIM> &m = shared_memory<query_memory<DIM>>();
    const struct kern_attention_shape &s = g.shape;
    const struct tile t = find_tile(p, p.ntile - 1 - (int32_t)blockIdx.x);
    const int64_t head = blockIdx.y, kv = head / (s.nhead / s.nkv), first = first_seen(s, t);
    const int row0 = (int)threadIdx.x / WARP * 16;
    const row_sums sums = load_sums(g, p, t, head, row0);
    part<DIM> dq = {};
    load_tile<DIM>(m.q, g.q, t.token, t.n, head, s.head_dim, vectors);
    load_tile<DIM>(m.d_o, g.d_o, t.token, t.n, head, s.head_dim, vectors);
    load_keys<DIM>(m, g, t, first, kv, vectors);
    copy_commit();
    for (int64_t key = first; key < t.token + t.n; key += TILE_ROWS) {
        const int stage = (int)((key - t.begin) / TILE_ROWS % 2);
        if (key + TILE_ROWS < t.token + t.n)
            load_keys<DIM>(m, g, t, key + TILE_ROWS, kv, vectors);
        copy_commit();
        copy_wait<1>();
        __syncthreads();
        part<TILE_ROWS> scores = {}, grads = {};
        multiply_rows<DIM>(scores, m.q, row0, m.k[stage]);
        multiply_rows<DIM>(grads, m.d_o, row0, m.v[stage]);
        weigh_queries(scores, grads, sums, s, t, row0, key);
        multiply_part<DIM>(dq, grads, m.k[stage]);
        __syncthreads();
    }
    copy_wait<0>();
    const float one[2] = {1, 1};
    store_part<DIM>(g.dq, m.q, dq, one, t.token, t.n, head, s.head_dim, vectors);
}

enum { MOST_HEADS = 65535 }; /* of a grid's second dimension */

} // namespace

void cuda_attention_mma_grad(struct kern_stream *stream, const struct kern_attention_grad *g, const struct packing *p)
{
    const struct kern_attention_shape *s = &g->shape;
    const bool vectors = aligned({g->q, g->k, g->v, g->d_o, g->dq, g->dk, g->dv}) && s->head_dim % 8 == 0;
    const dim3 keys((unsigned)p->ntile, (unsigned)s->nkv), queries((unsigned)p->ntile, (unsigned)s->nhead);
    if (!cuda_check(stream, s->nhead <= MOST_HEADS, "attention: more than 65535 heads"))
        return;
#define KEYS(DIM) launch(stream, key_grads<DIM>, keys, TILE_THREADS, sizeof(key_memory<DIM>), *g, *p, vectors)
    FOR_DIM(s->head_dim, KEYS);
#undef KEYS
#define QUERIES(DIM) launch(stream, query_grads<DIM>, queries, TILE_THREADS, sizeof(query_memory<DIM>), *g, *p, vectors)
    FOR_DIM(s->head_dim, QUERIES);
#undef QUERIES
}
