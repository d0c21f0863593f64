/* SPDX-License-Identifier: Apache-2.0 */
/* Mixtures of experts: the choice of experts by one block of threads per token, the order of rows by one per expert,
 * and element-wise work on rows. Sums are in fixed orders. */
#include "cuda/experts.cuh"
#include "cuda/experts.h"
#include "cuda/fold.cuh"
#include "cuda/reduce.cuh"
#include "cuda/vec.cuh"

namespace {

enum { TOKEN_THREADS = 128, MOST_GROUPS = KERN_MOST_EXPERTS / 2 };

/* ---- the choice */

struct choosing {
    block_parts<float> parts;
    float scores[KERN_MOST_EXPERTS], sums[MOST_GROUPS];
    unsigned char taken[KERN_MOST_EXPERTS];
    int best[TOKEN_THREADS / WARP];
};

/* True if e comes before f, of which the lower one does if they are equal; -1 is none. NaN comes first, so that it is
 * not lost. */
__device__ __forceinline__ bool is_better(const float *scores, int e, int f)
{
    if (e < 0 || f < 0)
        return f < 0;
    const float a = scores[e], b = scores[f];
    const bool nan_a = a != a, nan_b = b != b;
    return a > b || (nan_a && !nan_b) || ((a == b || (nan_a && nan_b)) && e < f);
}

/* The best of n scores that is not taken; takes it. */
__device__ __forceinline__ int take_best(choosing &c, const float *scores, int n)
{
    int best = -1;
    for (int e = (int)threadIdx.x; e < n; e += TOKEN_THREADS)
        if (!c.taken[e] && is_better(scores, e, best))
            best = e;
#pragma unroll
    for (int with = WARP / 2; with > 0; with /= 2) {
        const int other = __shfl_xor_sync(~0u, best, with);
        best = is_better(scores, other, best) ? other : best;
    }
    if (threadIdx.x % WARP == 0)
        c.best[threadIdx.x / WARP] = best;
    __syncthreads();
    best = c.best[0];
    for (int i = 1; i < TOKEN_THREADS / WARP; i++)
        best = is_better(scores, c.best[i], best) ? c.best[i] : best;
    if (threadIdx.x == 0 && best >= 0)
        c.taken[best] = 1;
    __syncthreads();
    return best;
}

__device__ __forceinline__ void clear_taken(choosing &c, int n)
{
    for (int e = (int)threadIdx.x; e < n; e += TOKEN_THREADS)
        c.taken[e] = 0;
    __syncthreads();
}

/* The sum of the two best of n scores. */
__device__ __forceinline__ float sum_of_two(const float *scores, int n)
{
    int best = 0, second = -1;
    for (int e = 1; e < n; e++) {
        if (is_better(scores, e, best))
            second = best, best = e;
        else if (is_better(scores, e, second))
            second = e;
    }
    return scores[best] + scores[second];
}

/* Makes the experts of all but the best groups worse than any other. */
__device__ __forceinline__ void leave_groups(choosing &c, const struct kern_router &r)
{
    const int n = (int)(r.nexperts / r.ngroup);
    for (int g = (int)threadIdx.x; g < r.ngroup; g += TOKEN_THREADS)
        c.sums[g] = sum_of_two(c.scores + g * n, n);
    clear_taken(c, (int)r.ngroup);
    for (int64_t i = 0; i < r.top_groups; i++)
        take_best(c, c.sums, (int)r.ngroup);
    for (int e = (int)threadIdx.x; e < r.nexperts; e += TOKEN_THREADS)
        c.scores[e] = c.taken[e / n] ? c.scores[e] : -INFINITY;
    __syncthreads();
}

/* Σ exp(x - top) over a token's logits. */
__device__ __forceinline__ float sum_exp(block_parts<float> &parts, const float *logits, int64_t n, float top)
{
    float sum = 0;
    for (int64_t e = threadIdx.x; e < n; e += TOKEN_THREADS)
        sum += expf(logits[e] - top);
    return block_sum<TOKEN_THREADS>(parts, sum);
}

__global__ void __launch_bounds__(TOKEN_THREADS) choose_experts(struct kern_route r)
{
    choosing &c = shared_memory<choosing>();
    const struct kern_router &router = r.router;
    const int nexperts = (int)router.nexperts;
    const int64_t token = blockIdx.x;
    const float *logits = r.logits + token * nexperts;
    float *weights = r.weights + token * router.top_k;
    int32_t *experts = r.experts + token * router.top_k;
    for (int e = (int)threadIdx.x; e < nexperts; e += TOKEN_THREADS)
        c.scores[e] = router.sigmoid ? sigmoid(logits[e]) + (router.bias ? router.bias[e] : 0.0f) : logits[e];
    __syncthreads();
    if (router.ngroup > 1)
        leave_groups(c, router);
    clear_taken(c, nexperts);
    float top = 0, chosen = router.sigmoid ? 1e-20f : 0.0f;
    for (int64_t k = 0; k < router.top_k; k++) {
        const int e = take_best(c, c.scores, nexperts);
        top = k == 0 ? logits[e] : top;
        const float score = router.sigmoid ? sigmoid(logits[e]) : expf(logits[e] - top);
        chosen += score;
        if (threadIdx.x == 0) {
            experts[k] = e;
            weights[k] = score;
        }
    }
    const float all = router.normalised || router.sigmoid ? 1.0f : sum_exp(c.parts, logits, nexperts, top),
                divisor = router.normalised ? chosen : all;
    for (int64_t k = 0; threadIdx.x == 0 && k < router.top_k; k++)
        weights[k] = weights[k] / divisor * router.scale;
}

/* ---- the order of rows */

__global__ void __launch_bounds__(THREADS) count_choices(const int32_t *experts, int64_t nchoices, int64_t *counts)
{
    int64_t n = 0;
    for (int64_t i = threadIdx.x; i < nchoices; i += THREADS)
        n += experts[i] == (int32_t)blockIdx.x;
    n = block_sum<THREADS>(shared_memory<block_parts<int64_t>>(), n);
    if (threadIdx.x == 0)
        counts[blockIdx.x] = n;
}

__global__ void __launch_bounds__(WARP)
    start_rows(const int64_t *counts, int64_t nexperts, int64_t unit, int64_t *starts)
{
    int64_t at = 0;
    if (threadIdx.x != 0)
        return;
    for (int64_t e = 0; e < nexperts; e++) {
        const int64_t n = counts[e];
        starts[e] = at;
        at += (n + unit - 1) / unit * unit;
    }
    starts[nexperts] = at;
}

struct places {
    unsigned votes[THREADS / WARP];
};

/* The choices of an expert in their order, then padding. */
__global__ void __launch_bounds__(THREADS) place_choices(struct kern_route r, int64_t nchoices, const int64_t *starts)
{
    places &shared = shared_memory<places>();
    const int32_t expert = (int32_t)blockIdx.x;
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    int64_t row = starts[expert];
    for (int64_t from = 0; from < nchoices; from += THREADS) {
        const int64_t i = from + threadIdx.x;
        const bool mine = i < nchoices && r.experts[i] == expert;
        const unsigned votes = __ballot_sync(~0u, mine);
        if (lane == 0)
            shared.votes[warp] = votes;
        __syncthreads();
        int64_t before = row;
        for (int w = 0; w < THREADS / WARP; w++) {
            before += w < warp ? __popc(shared.votes[w]) : 0;
            row += __popc(shared.votes[w]);
        }
        before += __popc(votes & ((1u << lane) - 1));
        if (mine) {
            r.rows[i] = (int32_t)before;
            r.choices[before] = (int32_t)i;
        }
        __syncthreads();
    }
    for (int64_t i = row + threadIdx.x; i < starts[expert + 1]; i += THREADS)
        r.choices[i] = -1;
}

/* ---- the router's gradient */

/* p: of the logits less the largest; sums over the experts of a token are those of all its threads. */
__global__ void __launch_bounds__(TOKEN_THREADS) route_grads(struct kern_route_grad g)
{
    block_parts<float> &parts = shared_memory<block_parts<float>>();
    const struct kern_router &r = g.router;
    const int64_t token = blockIdx.x, n = r.nexperts;
    const float *logits = g.logits + token * n, *weights = g.weights + token * r.top_k,
                *dweights = g.dweights + token * r.top_k;
    const int32_t *experts = g.experts + token * r.top_k;
    const bool spreads = !r.normalised && !r.sigmoid, slopes = g.slopes && token < g.nsloped;
    float mean = 0, slope = 0;
    for (int64_t k = 0; k < r.top_k; k++)
        mean += weights[k] * dweights[k];
    const float top = logits[experts[0]], sum = spreads || slopes ? sum_exp(parts, logits, n, top) : 1.0f;
    for (int64_t e = threadIdx.x; e < n && slopes; e += TOKEN_THREADS)
        slope += expf(logits[e] - top) / sum * g.slopes[e];
    slope = block_sum<TOKEN_THREADS>(parts, slope);
    for (int64_t e = threadIdx.x; e < n; e += TOKEN_THREADS) {
        const float p = spreads || slopes ? expf(logits[e] - top) / sum : 0.0f;
        float d = (spreads ? -mean * p : 0.0f) + (slopes ? p * (g.slopes[e] - slope) : 0.0f);
        for (int64_t k = 0; k < r.top_k; k++)
            if (experts[k] == e)
                d += weights[k] * (dweights[k] - (r.normalised ? mean / r.scale : 0.0f)) *
                     (r.sigmoid ? sigmoid(-logits[e]) : 1.0f);
        g.dlogits[token * n + e] = d;
    }
}

/* ---- the load balancing loss */

/* The sum of a token's softmax, one warp per token. */
__global__ void __launch_bounds__(THREADS) softmax_sums(struct kern_expert_load l, float *sums)
{
    const int64_t token = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / WARP;
    const bool exists = token < l.ntok;
    const float *logits = l.logits + (exists ? token : 0) * l.nexperts,
                top = logits[l.experts[(exists ? token : 0) * l.top_k]];
    float sum = 0;
    for (int64_t e = threadIdx.x % WARP; e < l.nexperts; e += WARP)
        sum += expf(logits[e] - top);
    sum = warp_sum(sum);
    if (exists && threadIdx.x % WARP == 0)
        sums[token] = sum;
}

struct softmax_op {
    struct kern_cmat logits;
    const int32_t *experts;
    int64_t top_k;
    const float *sums;
    template <types K> __device__ f8 value(int64_t row, int64_t col, int n, bool whole) const
    {
        const float top = load1<K>(logits, row, experts[row * top_k]);
        f8 x = load8<K>(logits, row, col, n, whole);
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            x.v[i] = expf(x.v[i] - top) / sums[row];
        return x;
    }
};

__global__ void __launch_bounds__(THREADS) add_counts(const int64_t *counts, float *choices, int64_t nexperts)
{
    const int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (e < nexperts)
        choices[e] += (float)counts[e];
}

__global__ void __launch_bounds__(THREADS) balance_experts(struct kern_expert_balance b)
{
    const double nrow = (double)b.nrow;
    double sum = 0;
    for (int64_t e = threadIdx.x; e < b.nexperts; e += THREADS) {
        const double slope = (double)b.nexperts * (double)b.choices[e] / nrow / nrow;
        sum += slope * (double)b.probs[e];
        b.slopes[e] = (float)((double)b.scale * slope);
    }
    sum = block_sum<THREADS>(shared_memory<block_parts<double>>(), sum);
    if (threadIdx.x == 0)
        *b.sum += b.weight * sum;
}

/* ---- rows */

struct rows_op {
    struct kern_expert_rows r;
    template <types K> __device__ void at(int64_t row, int64_t col, int n, bool whole) const
    {
        const int32_t choice = r.choices[row];
        store8<K>(r.dst, row, col, n, whole, choice < 0 ? f8{} : load8<K>(r.src, choice / r.top_k, col, n, whole));
    }
};

struct sum_op {
    struct kern_expert_sum s;
    template <types K> __device__ void at(int64_t row, int64_t col, int n, bool whole) const
    {
        f8 sum = {};
        if (s.add.data)
            sum = load8<K>(s.add, row, col, n, whole);
        for (int64_t k = 0; k < s.top_k; k++) {
            const f8 x = load8<K>(s.src, s.rows[row * s.top_k + k], col, n, whole);
#pragma unroll
            for (int i = 0; i < WIDTH; i++)
                sum.v[i] += x.v[i];
        }
        store8<K>(s.dst, row, col, n, whole, sum);
    }
};

/* ---- the weight of an expert that all tokens share */

__global__ void __launch_bounds__(THREADS) gates(struct kern_expert_gate g)
{
    const int64_t t = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (t < g.ntok)
        g.weights[t] = sigmoid(g.logits[t]);
}

__global__ void __launch_bounds__(THREADS) gate_grads(struct kern_expert_gate_grad g)
{
    const int64_t t = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (t < g.ntok)
        g.dlogits[t] = g.dweights[t] * g.weights[t] * (1 - g.weights[t]);
}

/* Returns the starts, in the stream's scratch. */
const int64_t *choose_and_order(struct kern_stream *stream, const struct kern_route *r)
{
    const int64_t nchoices = r->ntok * r->router.top_k, nexperts = r->router.nexperts;
    const dim3 each((unsigned)nexperts);
    int64_t *counts = static_cast<int64_t *>(stream->scratch), *starts = counts + nexperts;
    launch(stream, choose_experts, dim3((unsigned)r->ntok), TOKEN_THREADS, sizeof(choosing), *r);
    launch(stream, count_choices, each, THREADS, sizeof(block_parts<int64_t>), r->experts, nchoices, counts);
    launch(stream, start_rows, dim3(1), WARP, 0, counts, nexperts, r->unit, starts);
    launch(stream, place_choices, each, THREADS, sizeof(places), *r, nchoices, starts);
    return starts;
}

} // namespace

void cuda_route(struct kern_stream *stream, const struct kern_route *r)
{
    const int64_t *starts = nullptr;
    if (cuda_check(stream, kern_router_can_choose(&r->router) && r->unit > 0,
                   "route: top_k is not one of 1 … nexperts, or the groups do not hold as many experts") &&
        cuda_has_scratch(stream))
        starts = choose_and_order(stream, r);
    cuda_read_back(stream, r->starts, starts, (size_t)(r->router.nexperts + 1) * sizeof *starts);
}

void cuda_route_grad(struct kern_stream *stream, const struct kern_route_grad *g)
{
    launch(stream, route_grads, dim3((unsigned)g->ntok), TOKEN_THREADS, sizeof(block_parts<float>), *g);
}

void cuda_expert_load(struct kern_stream *stream, const struct kern_expert_load *l)
{
    const struct kern_cmat logits = { l->logits, l->nexperts, KERN_F32 };
    const int64_t nchoices = l->ntok * l->top_k;
    if (!cuda_check(stream, l->nexperts <= KERN_MOST_EXPERTS && l->ntok * (int64_t)sizeof(float) <= CUDA_SCRATCH_BYTES,
                    "load: too many experts or tokens") ||
        !cuda_has_scratch(stream))
        return;
    float *sums = static_cast<float *>(stream->scratch);
    launch(stream, softmax_sums, blocks_for(l->ntok * WARP, THREADS), THREADS, 0, *l, sums);
    sum_rows_by_blocks(stream, { logits }, aligned({ logits }), l->ntok, l->nexperts,
                       softmax_op{ logits, l->experts, l->top_k, sums }, l->probs, l->scratch);
    int64_t *counts = static_cast<int64_t *>(stream->scratch); /* the sums have been used */
    launch(stream, count_choices, dim3((unsigned)l->nexperts), THREADS, sizeof(block_parts<int64_t>), l->experts,
           nchoices, counts);
    launch(stream, add_counts, blocks_for(l->nexperts, THREADS), THREADS, 0, counts, l->choices, l->nexperts);
}

void cuda_expert_balance(struct kern_stream *stream, const struct kern_expert_balance *b)
{
    launch(stream, balance_experts, dim3(1), THREADS, sizeof(block_parts<double>), *b);
}

void cuda_expert_rows(struct kern_stream *stream, const struct kern_expert_rows *r)
{
    for_eights(stream, { r->src, r->dst }, r->nrow, r->ncol, rows_op{ *r });
}

void cuda_expert_sum(struct kern_stream *stream, const struct kern_expert_sum *s)
{
    for_eights(stream, { s->src, s->add, s->dst }, s->ntok, s->ncol, sum_op{ *s });
}

void cuda_expert_gate(struct kern_stream *stream, const struct kern_expert_gate *g)
{
    launch(stream, gates, blocks_for(g->ntok, THREADS), THREADS, 0, *g);
}

void cuda_expert_gate_grad(struct kern_stream *stream, const struct kern_expert_gate_grad *g)
{
    launch(stream, gate_grads, blocks_for(g->ntok, THREADS), THREADS, 0, *g);
}
