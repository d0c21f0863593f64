/* SPDX-License-Identifier: Apache-2.0 */
/* Attention in fp32 throughout, for any element type and heads of up to 512 features. A warp takes one token and head.
 * It processes the tokens that this one sees (or that see it) 32 at a time: first with one lane per token, then with
 * one lane per feature, over the 32 in order. */
#include "cuda/attention.cuh"
#include "cuda/reduce.cuh"

namespace {

enum { MAX_DIM = 512, PER_LANE = MAX_DIM / WARP, NWARP = THREADS / WARP };

/* Shared memory of each warp: two rows of features of its own token, and the weights of its lanes. */
struct warp_scratch {
    float row[NWARP][2][MAX_DIM];
    float weight[NWARP][WARP];
};

struct features {
    float v[PER_LANE];
};

/* The token and head of this warp, out of nhead heads. */
struct task {
    int64_t token, head, begin, end; /* bounds of its document */
    int64_t seen;                    /* the end of its tokens, before the padding */
    int lane;
    float (*row)[MAX_DIM];
    float *weight;
};

__device__ __forceinline__ bool find_task(const struct kern_attention_shape &s, const struct packing &p, int64_t nhead,
                                          task *t)
{
    const int64_t warp = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / WARP;
    if (warp >= s.ntok * nhead)
        return false;
    t->token = warp / nhead;
    t->head = warp % nhead;
    t->lane = (int)threadIdx.x % WARP;
    const int d = find_document<&document::token>(p, (int32_t)t->token);
    t->begin = p.docs[d].token;
    t->end = p.docs[d + 1].token;
    t->seen = end_of_keys(s, t->begin, t->end);
    t->row = shared_memory<warp_scratch>().row[threadIdx.x / WARP];
    t->weight = shared_memory<warp_scratch>().weight[threadIdx.x / WARP];
    return true;
}

__device__ __forceinline__ void load_own(const task &t, int which, const struct kern_cmat &m, int64_t head, int64_t dim)
{
    for (int64_t c = t.lane; c < dim; c += WARP)
        t.row[which][c] = load1<MIXED>(m, t.token, head * dim + c);
}

__device__ __forceinline__ float dot(const float *row, const struct kern_cmat &m, int64_t token, int64_t head,
                                     int64_t dim)
{
    float sum = 0;
    for (int64_t c = 0; c < dim; c++)
        sum += row[c] * load1<MIXED>(m, token, head * dim + c);
    return sum;
}

/* Adds Σ over lanes of the lane's weight times row from + lane to sum. */
__device__ __forceinline__ void add_rows(const task &t, features &sum, float weight, const struct kern_cmat &m,
                                         int64_t from, int64_t n, int64_t head, int64_t dim)
{
    t.weight[t.lane] = weight;
    __syncwarp();
    for (int l = 0; l < n; l++)
#pragma unroll
        for (int i = 0; i < PER_LANE; i++)
            if (t.lane + i * WARP < dim)
                sum.v[i] += t.weight[l] * load1<MIXED>(m, from + l, head * dim + t.lane + i * WARP);
    __syncwarp();
}

__device__ __forceinline__ void store_features(const features &x, float factor, const struct kern_mat &m, const task &t,
                                               int64_t dim)
{
#pragma unroll
    for (int i = 0; i < PER_LANE; i++)
        if (t.lane + i * WARP < dim)
            store1<MIXED>(m, t.token, t.head * dim + t.lane + i * WARP, x.v[i] * factor);
}

__device__ __forceinline__ int64_t first_key(const struct kern_attention_shape &s, const task &t)
{
    const int64_t first = s.window ? t.token - s.window + 1 : t.begin;
    return first > t.begin ? first : t.begin;
}

/* The token after the last key that the task's query sees. */
__device__ __forceinline__ int64_t last_key(const struct kern_attention_shape &s, const task &t)
{
    return s.full || t.token >= t.seen ? t.seen : t.token + 1;
}

__device__ __forceinline__ int64_t some_rows(int64_t from, int64_t end)
{
    return end - from < WARP ? end - from : WARP;
}

/* One step of the online softmax. Returns the weight of this lane's score (0 if !there) and rescales the sums to the
 * new maximum. */
__device__ __forceinline__ float online_softmax_step(float score, bool there, float *top, float *sum, features &o)
{
    const float next = fmaxf(*top, warp_max(score)), factor = *top == next ? 1.0f : expf(*top - next);
    const float weight = there ? expf(score - next) : 0.0f;
    *sum = *sum * factor + warp_sum(weight);
    *top = next;
#pragma unroll
    for (int i = 0; i < PER_LANE; i++)
        o.v[i] *= factor;
    return weight;
}

__global__ void __launch_bounds__(THREADS) forward(struct kern_attention a, packing p)
{
    const struct kern_attention_shape &s = a.shape;
    task t;
    if (!find_task(s, p, s.nhead, &t))
        return;
    const int64_t kv = t.head / (s.nhead / s.nkv);
    features o = {};
    float top = s.sinks.data ? load1<MIXED>(s.sinks, 0, t.head) : -INFINITY, sum = s.sinks.data ? 1 : 0;
    load_own(t, 0, a.q, t.head, s.head_dim);
    __syncwarp();
    const int64_t end = last_key(s, t);
    for (int64_t from = first_key(s, t); from < end; from += WARP) {
        const int64_t n = some_rows(from, end);
        const float weight =
            online_softmax_step(t.lane < n ? dot(t.row[0], a.k, from + t.lane, kv, s.head_dim) * s.scale : -INFINITY,
                                t.lane < n, &top, &sum, o);
        add_rows(t, o, weight, a.v, from, n, kv, s.head_dim);
    }
    store_features(o, 1.0f / sum, a.o, t, s.head_dim);
    if (a.lse && t.lane == 0)
        a.lse[t.head * s.ntok + t.token] = top + logf(sum);
}

/* The weight of a pair of tokens, and its gradient. Own rows 0 and 1 are multiplied with the rows of the other token
 * in x0 and x1; lse and delta belong to the query. */
struct pair {
    float weight, grad;
};

__device__ __forceinline__ pair weigh(const struct kern_attention_shape &s, const task &t, const struct kern_cmat &x0,
                                      const struct kern_cmat &x1, int64_t other, int64_t other_head, float lse,
                                      float delta)
{
    const float weight = expf(dot(t.row[0], x0, other, other_head, s.head_dim) * s.scale - lse);
    const float dweight = dot(t.row[1], x1, other, other_head, s.head_dim);
    return pair{ weight, weight * (dweight - delta) * s.scale };
}

/* Gradients of one key: a sum over the query heads that share it, and the tokens that see it. */
__global__ void __launch_bounds__(THREADS) key_grads(struct kern_attention_grad g, packing p)
{
    const struct kern_attention_shape &s = g.shape;
    task t;
    if (!find_task(s, p, s.nkv, &t))
        return;
    const int64_t shared_by = s.nhead / s.nkv, first = s.full ? t.begin : t.token,
                  end = t.token >= t.seen                        ? first
                        : s.window && t.token + s.window < t.end ? t.token + s.window
                                                                 : t.end;
    features dk = {}, dv = {};
    load_own(t, 0, g.k, t.head, s.head_dim);
    load_own(t, 1, g.v, t.head, s.head_dim);
    __syncwarp();
    for (int64_t head = t.head * shared_by; head < (t.head + 1) * shared_by; head++)
        for (int64_t from = first; from < end; from += WARP) {
            const int64_t n = some_rows(from, end), query = from + t.lane, at = head * s.ntok + query;
            const pair w = t.lane < n ? weigh(s, t, g.q, g.d_o, query, head, g.lse[at], p.delta[at]) : pair{ 0, 0 };
            add_rows(t, dv, w.weight, g.d_o, from, n, head, s.head_dim);
            add_rows(t, dk, w.grad, g.q, from, n, head, s.head_dim);
        }
    store_features(dk, 1, g.dk, t, s.head_dim);
    store_features(dv, 1, g.dv, t, s.head_dim);
}

/* Runs after key_grads, because dq may share memory with q, o or d_o. A warp reads only its own row of these. */
__global__ void __launch_bounds__(THREADS) query_grads(struct kern_attention_grad g, packing p)
{
    const struct kern_attention_shape &s = g.shape;
    task t;
    if (!find_task(s, p, s.nhead, &t))
        return;
    const int64_t kv = t.head / (s.nhead / s.nkv), at = t.head * s.ntok + t.token;
    const float lse = g.lse[at], delta = p.delta[at];
    features dq = {};
    load_own(t, 0, g.q, t.head, s.head_dim);
    load_own(t, 1, g.d_o, t.head, s.head_dim);
    __syncwarp();
    const int64_t end = last_key(s, t);
    for (int64_t from = first_key(s, t); from < end; from += WARP) {
        const int64_t n = some_rows(from, end);
        const pair w = t.lane < n ? weigh(s, t, g.k, g.v, from + t.lane, kv, lse, delta) : pair{ 0, 0 };
        add_rows(t, dq, w.grad, g.k, from, n, kv, s.head_dim);
    }
    store_features(dq, 1, g.dq, t, s.head_dim);
}

bool fits(struct kern_stream *stream, int64_t head_dim)
{
    return cuda_check(stream, head_dim <= MAX_DIM, "attention: heads of more than 512 features");
}

} // namespace

void cuda_attention_plain(struct kern_stream *stream, const struct kern_attention *a, const struct packing *p)
{
    if (fits(stream, a->shape.head_dim))
        launch(stream, forward, blocks_for(a->shape.ntok * a->shape.nhead, NWARP), THREADS, sizeof(warp_scratch), *a,
               *p);
}

void cuda_attention_plain_grad(struct kern_stream *stream, const struct kern_attention_grad *g, const struct packing *p)
{
    if (!fits(stream, g->shape.head_dim))
        return;
    launch(stream, key_grads, blocks_for(g->shape.ntok * g->shape.nkv, NWARP), THREADS, sizeof(warp_scratch), *g, *p);
    launch(stream, query_grads, blocks_for(g->shape.ntok * g->shape.nhead, NWARP), THREADS, sizeof(warp_scratch), *g,
           *p);
}
