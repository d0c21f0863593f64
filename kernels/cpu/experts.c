/* SPDX-License-Identifier: Apache-2.0 */
/* Mixtures of experts on the CPU: the choice of experts, the order of rows, and element-wise work on rows. */
#include "cpu/experts.h"

#include "cpu/work.h"

#include <math.h>
#include <string.h>

/* True if e comes before f. NaN comes first, so that it is not lost. */
static bool is_better(const float *scores, int64_t e, int64_t f)
{
    return scores[e] > scores[f] || (isnan(scores[e]) && !isnan(scores[f]));
}

/* The best of nscores that is not among the n chosen ones. */
static int32_t next_best(const float *scores, int64_t nscores, const int32_t *chosen, int64_t n)
{
    int64_t best = -1;
    for (int64_t e = 0; e < nscores; e++) {
        bool taken = false;
        for (int64_t i = 0; i < n; i++)
            taken = taken || chosen[i] == e;
        if (!taken && (best < 0 || is_better(scores, e, best)))
            best = e;
    }
    return (int32_t)best;
}

static void choose(const float *scores, int64_t nscores, int32_t *chosen, int64_t n)
{
    for (int64_t k = 0; k < n; k++)
        chosen[k] = next_best(scores, nscores, chosen, k);
}

/* exp of the logits less their maximum, over `sum` of it: over all experts, or over the chosen ones. */
static void choose_softmax(const struct cpu_simd *simd, const struct kern_router *r, const float *logits,
                           int32_t *experts, float *weights)
{
    float chosen = 0;
    choose(logits, r->nexperts, experts, r->top_k);
    for (int64_t k = 0; k < r->top_k; k++) {
        weights[k] = expf(logits[experts[k]] - logits[experts[0]]);
        chosen += weights[k];
    }
    const float sum = r->normalised ? chosen : simd->sum_exp(logits, 1, logits[experts[0]], r->nexperts);
    for (int64_t k = 0; k < r->top_k; k++)
        weights[k] = weights[k] / sum * r->scale;
}

static float sigmoid(float x)
{
    return 1 / (1 + expf(-x));
}

/* Makes the experts of all but the best groups worse than any other. */
static void leave_groups(const struct kern_router *r, float *scores)
{
    const int64_t n = r->nexperts / r->ngroup;
    float sums[KERN_MOST_EXPERTS / 2];
    int32_t best[2], groups[KERN_MOST_EXPERTS / 2];
    bool stays[KERN_MOST_EXPERTS / 2] = { false };
    for (int64_t g = 0; g < r->ngroup; g++) {
        choose(scores + g * n, n, best, 2);
        sums[g] = scores[g * n + best[0]] + scores[g * n + best[1]];
    }
    choose(sums, r->ngroup, groups, r->top_groups);
    for (int64_t g = 0; g < r->top_groups; g++)
        stays[groups[g]] = true;
    for (int64_t e = 0; e < r->nexperts; e++)
        scores[e] = stays[e / n] ? scores[e] : -INFINITY;
}

/* transformers adds 1e-20 to the sum of the weights, too. */
static void choose_sigmoid(const struct kern_router *r, const float *logits, int32_t *experts, float *weights)
{
    float scores[KERN_MOST_EXPERTS], sum = 1e-20f;
    for (int64_t e = 0; e < r->nexperts; e++)
        scores[e] = sigmoid(logits[e]) + (r->bias ? r->bias[e] : 0);
    if (r->ngroup > 1)
        leave_groups(r, scores);
    choose(scores, r->nexperts, experts, r->top_k);
    for (int64_t k = 0; k < r->top_k; k++)
        sum += weights[k] = sigmoid(logits[experts[k]]);
    for (int64_t k = 0; k < r->top_k; k++)
        weights[k] = (r->normalised ? weights[k] / sum : weights[k]) * r->scale;
}

static void choose_block(const struct cpu_simd *simd, void *ctx, int64_t block, int64_t row0, int64_t row1)
{
    const struct kern_route *r = ctx;
    const int64_t top_k = r->router.top_k;
    (void)block;
    for (int64_t t = row0; t < row1; t++) {
        const float *logits = r->logits + t * r->router.nexperts;
        if (r->router.sigmoid)
            choose_sigmoid(&r->router, logits, r->experts + t * top_k, r->weights + t * top_k);
        else
            choose_softmax(simd, &r->router, logits, r->experts + t * top_k, r->weights + t * top_k);
    }
}

/* A counting sort, which keeps the order of tokens. */
static void order(const struct kern_route *r)
{
    const int64_t nexperts = r->router.nexperts, nchoices = r->ntok * r->router.top_k;
    int64_t *next = r->starts; /* the next free row of each expert, shifted by one */
    memset(r->starts, 0, (size_t)(nexperts + 1) * sizeof *r->starts);
    for (int64_t i = 0; i < nchoices; i++)
        next[r->experts[i]]++;
    int64_t at = 0;
    for (int64_t e = 0; e < nexperts; e++) {
        const int64_t n = next[e], padded = (n + r->unit - 1) / r->unit * r->unit;
        for (int64_t i = at + n; i < at + padded; i++)
            r->choices[i] = -1;
        next[e] = at;
        at += padded;
    }
    for (int64_t i = 0; i < nchoices; i++) {
        const int64_t row = next[r->experts[i]]++;
        r->rows[i] = (int32_t)row;
        r->choices[row] = (int32_t)i;
    }
    for (int64_t e = nexperts; e > 0; e--) /* now each is the end of its expert's choices */
        r->starts[e] = (next[e - 1] + r->unit - 1) / r->unit * r->unit;
    r->starts[0] = 0;
}

static void expert_route(struct kern_stream *stream, const struct kern_route *r)
{
    struct kern_route copy = *r;
    if (!cpu_check(stream, kern_router_can_choose(&r->router) && r->unit > 0,
                   "route: top_k is not one of 1 … nexperts, or the groups do not hold as many experts"))
        return;
    cpu_for_blocks(stream, r->ntok, choose_block, &copy);
    order(r);
}

/* dlogit_e += p_e·(slope_e - Σ p·slope), p the softmax. best: the expert with the largest logit. */
static void add_slopes(const struct cpu_simd *simd, const struct kern_route_grad *g, const float *logits, int32_t best,
                       float *dlogits)
{
    const int64_t n = g->router.nexperts;
    float p[KERN_MOST_EXPERTS];
    const float sum = simd->exp(p, logits, 1, logits[best], n), mean = simd->dot(p, g->slopes, n) / sum;
    for (int64_t e = 0; e < n; e++)
        dlogits[e] += p[e] / sum * (g->slopes[e] - mean);
}

/* Scores p, weights w = scale·p, or normalised scale·p/Σ p over the chosen experts; mean = Σ w·dw. For the softmax,
 * ∂p_i/∂logit_j = p_i·([i = j] - p_j), and normalised weights are that of the chosen experts alone; for sigmoids,
 * ∂p_i/∂logit_i = p_i·(1 - p_i). */
static void route_grad_block(const struct cpu_simd *simd, void *ctx, int64_t block, int64_t row0, int64_t row1)
{
    const struct kern_route_grad *g = ctx;
    const struct kern_router *r = &g->router;
    (void)block;
    for (int64_t t = row0; t < row1; t++) {
        const float *logits = g->logits + t * r->nexperts, *weights = g->weights + t * r->top_k,
                    *dweights = g->dweights + t * r->top_k;
        const int32_t *experts = g->experts + t * r->top_k;
        float *dlogits = g->dlogits + t * r->nexperts, mean = 0;
        for (int64_t k = 0; k < r->top_k; k++)
            mean += weights[k] * dweights[k];
        if (r->normalised || r->sigmoid) {
            memset(dlogits, 0, (size_t)r->nexperts * sizeof *dlogits);
        } else {
            const float sum = simd->exp(dlogits, logits, 1, logits[experts[0]], r->nexperts);
            simd->scale(dlogits, dlogits, -mean / sum, r->nexperts);
        }
        for (int64_t k = 0; k < r->top_k; k++)
            dlogits[experts[k]] += weights[k] * (dweights[k] - (r->normalised ? mean / r->scale : 0)) *
                                   (r->sigmoid ? sigmoid(-logits[experts[k]]) : 1);
        if (g->slopes && t < g->nsloped)
            add_slopes(simd, g, logits, experts[0], dlogits);
    }
}

static void expert_route_grad(struct kern_stream *stream, const struct kern_route_grad *g)
{
    struct kern_route_grad copy = *g;
    cpu_for_blocks(stream, g->ntok, route_grad_block, &copy);
}

static void load_block(const struct cpu_simd *simd, void *ctx, int64_t block, int64_t row0, int64_t row1)
{
    const struct kern_expert_load *l = ctx;
    float *sums = l->scratch + block * l->nexperts, p[KERN_MOST_EXPERTS];
    memset(sums, 0, (size_t)l->nexperts * sizeof *sums);
    for (int64_t t = row0; t < row1; t++) {
        const float *logits = l->logits + t * l->nexperts;
        const float sum = simd->exp(p, logits, 1, logits[l->experts[t * l->top_k]], l->nexperts);
        simd->scale(p, p, 1 / sum, l->nexperts);
        simd->add(sums, sums, p, l->nexperts);
    }
}

static void expert_load(struct kern_stream *stream, const struct kern_expert_load *l)
{
    struct kern_expert_load copy = *l;
    if (!cpu_check(stream, l->nexperts <= KERN_MOST_EXPERTS, "load: too many experts"))
        return;
    cpu_for_blocks(stream, l->ntok, load_block, &copy);
    cpu_fold(stream, l->probs, l->scratch, kern_row_blocks(l->ntok), l->nexperts);
    for (int64_t i = 0; i < l->ntok * l->top_k; i++)
        l->choices[l->experts[i]] += 1;
}

static void expert_balance(struct kern_stream *stream, const struct kern_expert_balance *b)
{
    const double nrow = (double)b->nrow;
    double sum = 0;
    for (int64_t e = 0; e < b->nexperts && !stream->status; e++) {
        const double slope = (double)b->nexperts * (double)b->choices[e] / nrow / nrow;
        sum += slope * (double)b->probs[e];
        b->slopes[e] = (float)((double)b->scale * slope);
    }
    *b->sum += b->weight * sum;
}

static void rows_strip(const struct cpu_simd *simd, void *ctx, int64_t row, int64_t col, int64_t n)
{
    const struct kern_expert_rows *r = ctx;
    float strip[CPU_STRIP];
    const float *values = strip;
    if (r->choices[row] < 0)
        memset(strip, 0, (size_t)n * sizeof *strip);
    else
        values = cpu_load(simd, r->src, r->choices[row] / r->top_k, col, n, strip);
    cpu_store(simd, r->dst, row, col, n, values);
}

static void expert_rows(struct kern_stream *stream, const struct kern_expert_rows *r)
{
    struct kern_expert_rows copy = *r;
    cpu_for_strips(stream, r->nrow, r->ncol, rows_strip, &copy);
}

static void sum_strip(const struct cpu_simd *simd, void *ctx, int64_t row, int64_t col, int64_t n)
{
    const struct kern_expert_sum *s = ctx;
    const int32_t *rows = s->rows + row * s->top_k;
    float sum[CPU_STRIP], strip[CPU_STRIP];
    if (s->add.data)
        cpu_load_copy(simd, sum, s->add, row, col, n);
    else
        memset(sum, 0, (size_t)n * sizeof *sum);
    for (int64_t k = 0; k < s->top_k; k++)
        simd->add(sum, sum, cpu_load(simd, s->src, rows[k], col, n, strip), n);
    cpu_store(simd, s->dst, row, col, n, sum);
}

static void expert_sum(struct kern_stream *stream, const struct kern_expert_sum *s)
{
    struct kern_expert_sum copy = *s;
    cpu_for_strips(stream, s->ntok, s->ncol, sum_strip, &copy);
}

static void expert_gate(struct kern_stream *stream, const struct kern_expert_gate *g)
{
    for (int64_t t = 0; t < g->ntok && !stream->status; t++)
        g->weights[t] = sigmoid(g->logits[t]);
}

static void expert_gate_grad(struct kern_stream *stream, const struct kern_expert_gate_grad *g)
{
    for (int64_t t = 0; t < g->ntok && !stream->status; t++)
        g->dlogits[t] = g->dweights[t] * g->weights[t] * (1 - g->weights[t]);
}

const struct kern_expert_ops cpu_expert_ops = { .route = expert_route,
                                                .route_grad = expert_route_grad,
                                                .load = expert_load,
                                                .balance = expert_balance,
                                                .rows = expert_rows,
                                                .sum = expert_sum,
                                                .act = cpu_expert_act,
                                                .act_grad = cpu_expert_act_grad,
                                                .bias = cpu_expert_bias,
                                                .bias_grad = cpu_expert_bias_grad,
                                                .gate = expert_gate,
                                                .gate_grad = expert_gate_grad };
