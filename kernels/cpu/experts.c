/* SPDX-License-Identifier: Apache-2.0 */
/* Mixtures of experts on the CPU: the choice of experts, the order of rows, and element-wise work on rows. */
#include "cpu/experts.h"

#include "cpu/work.h"

#include <math.h>
#include <string.h>

/* True if expert e comes before f. NaN comes first, so that it is not lost. */
static bool is_better(const float *logits, int64_t e, int64_t f)
{
    return logits[e] > logits[f] || (isnan(logits[e]) && !isnan(logits[f]));
}

/* The best expert that is not among the n chosen ones. */
static int32_t next_best(const float *logits, int64_t nexperts, const int32_t *chosen, int64_t n)
{
    int64_t best = -1;
    for (int64_t e = 0; e < nexperts; e++) {
        bool taken = false;
        for (int64_t i = 0; i < n; i++)
            taken = taken || chosen[i] == e;
        if (!taken && (best < 0 || is_better(logits, e, best)))
            best = e;
    }
    return (int32_t)best;
}

/* exp of the logits less their maximum, over `sum` of it: over all experts, or over the chosen ones. */
static void choose_block(const struct cpu_simd *simd, void *ctx, int64_t block, int64_t row0, int64_t row1)
{
    const struct kern_route *r = ctx;
    (void)block;
    for (int64_t t = row0; t < row1; t++) {
        const float *logits = r->logits + t * r->nexperts;
        float *weights = r->weights + t * r->top_k, chosen = 0;
        int32_t *experts = r->experts + t * r->top_k;
        for (int64_t k = 0; k < r->top_k; k++) {
            experts[k] = next_best(logits, r->nexperts, experts, k);
            weights[k] = expf(logits[experts[k]] - logits[experts[0]]);
            chosen += weights[k];
        }
        const float sum = r->normalised ? chosen : simd->sum_exp(logits, 1, logits[experts[0]], r->nexperts);
        for (int64_t k = 0; k < r->top_k; k++)
            weights[k] /= sum;
    }
}

/* A counting sort, which keeps the order of tokens. */
static void order(const struct kern_route *r)
{
    const int64_t nchoices = r->ntok * r->top_k;
    int64_t *next = r->starts; /* the next free row of each expert, shifted by one */
    memset(r->starts, 0, (size_t)(r->nexperts + 1) * sizeof *r->starts);
    for (int64_t i = 0; i < nchoices; i++)
        next[r->experts[i]]++;
    int64_t at = 0;
    for (int64_t e = 0; e < r->nexperts; e++) {
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
    for (int64_t e = r->nexperts; e > 0; e--) /* now each is the end of its expert's choices */
        r->starts[e] = (next[e - 1] + r->unit - 1) / r->unit * r->unit;
    r->starts[0] = 0;
}

static void expert_route(struct kern_stream *stream, const struct kern_route *r)
{
    struct kern_route copy = *r;
    if (!cpu_check(stream, r->top_k > 0 && r->top_k <= r->nexperts && r->unit > 0,
                   "route: top_k is not one of 1 … nexperts"))
        return;
    cpu_for_blocks(stream, r->ntok, choose_block, &copy);
    order(r);
}

/* With p the softmax over all experts and d = Σ dweight·∂weight/∂p, ∂p_i/∂logit_j = p_i·([i = j] - p_j). Normalised
 * weights are the softmax over the chosen experts alone. */
static void route_grad_block(const struct cpu_simd *simd, void *ctx, int64_t block, int64_t row0, int64_t row1)
{
    const struct kern_route_grad *g = ctx;
    (void)block;
    for (int64_t t = row0; t < row1; t++) {
        const float *logits = g->logits + t * g->nexperts, *weights = g->weights + t * g->top_k,
                    *dweights = g->dweights + t * g->top_k;
        const int32_t *experts = g->experts + t * g->top_k;
        float *dlogits = g->dlogits + t * g->nexperts, mean = 0;
        for (int64_t k = 0; k < g->top_k; k++)
            mean += weights[k] * dweights[k];
        if (g->normalised) {
            memset(dlogits, 0, (size_t)g->nexperts * sizeof *dlogits);
        } else {
            const float sum = simd->exp(dlogits, logits, 1, logits[experts[0]], g->nexperts);
            simd->scale(dlogits, dlogits, -mean / sum, g->nexperts);
        }
        for (int64_t k = 0; k < g->top_k; k++)
            dlogits[experts[k]] += weights[k] * (dweights[k] - (g->normalised ? mean : 0));
    }
}

static void expert_route_grad(struct kern_stream *stream, const struct kern_route_grad *g)
{
    struct kern_route_grad copy = *g;
    cpu_for_blocks(stream, g->ntok, route_grad_block, &copy);
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

/* -1: padding. */
static int64_t choice_of(const int32_t *choices, int64_t row)
{
    return choices ? choices[row] : row;
}

static void act_strip(const struct cpu_simd *simd, void *ctx, int64_t row, int64_t col, int64_t n)
{
    const struct kern_expert_act *a = ctx;
    const int64_t choice = choice_of(a->choices, row);
    float gate[CPU_STRIP], up[CPU_STRIP], y[CPU_STRIP] = { 0 };
    if (choice >= 0) {
        simd->swiglu(y, cpu_load(simd, a->gate, row, col, n, gate), cpu_load(simd, a->up, row, col, n, up), n);
        simd->scale(y, y, a->weights[choice], n);
    }
    cpu_store(simd, a->y, row, col, n, y);
}

static void expert_act(struct kern_stream *stream, const struct kern_expert_act *a)
{
    struct kern_expert_act copy = *a;
    cpu_for_strips(stream, a->nrow, a->ncol, act_strip, &copy);
}

/* One strip of a row; returns its part of the weight's gradient. Computed into separate strips, because the results may
 * overwrite operands. */
static float act_grad_strip(const struct cpu_simd *simd, const struct kern_expert_act_grad *g, int64_t row, int64_t col,
                            int64_t n)
{
    const float weight = g->weights[choice_of(g->choices, row)];
    float gate[CPU_STRIP], up[CPU_STRIP], dy[CPU_STRIP], y[CPU_STRIP], dgate[CPU_STRIP], dup[CPU_STRIP];
    const float *a = cpu_load(simd, g->gate, row, col, n, gate), *b = cpu_load(simd, g->up, row, col, n, up);
    cpu_load_copy(simd, dy, g->dy, row, col, n);
    simd->swiglu(y, a, b, n);
    const float part = simd->dot(dy, y, n);
    simd->scale(dy, dy, weight, n);
    simd->swiglu_grad(dgate, dup, a, b, dy, n);
    cpu_store(simd, g->dgate, row, col, n, dgate);
    cpu_store(simd, g->dup, row, col, n, dup);
    if (g->y.data) {
        simd->scale(y, y, weight, n);
        cpu_store(simd, g->y, row, col, n, y);
    }
    return part;
}

static void clear_strip(const struct cpu_simd *simd, const struct kern_expert_act_grad *g, int64_t row, int64_t col,
                        int64_t n)
{
    static const float zeros[CPU_STRIP];
    cpu_store(simd, g->dgate, row, col, n, zeros);
    cpu_store(simd, g->dup, row, col, n, zeros);
    if (g->y.data)
        cpu_store(simd, g->y, row, col, n, zeros);
}

static void act_grad_block(const struct cpu_simd *simd, void *ctx, int64_t block, int64_t row0, int64_t row1)
{
    const struct kern_expert_act_grad *g = ctx;
    (void)block;
    for (int64_t row = row0; row < row1; row++) {
        const int64_t choice = choice_of(g->choices, row);
        float sum = 0;
        for (int64_t col = 0; col < g->ncol; col += CPU_STRIP) {
            const int64_t n = g->ncol - col < CPU_STRIP ? g->ncol - col : CPU_STRIP;
            if (choice < 0)
                clear_strip(simd, g, row, col, n);
            else
                sum += act_grad_strip(simd, g, row, col, n);
        }
        if (choice >= 0)
            g->dweights[choice] = sum;
    }
}

static void expert_act_grad(struct kern_stream *stream, const struct kern_expert_act_grad *g)
{
    struct kern_expert_act_grad copy = *g;
    cpu_for_blocks(stream, g->nrow, act_grad_block, &copy);
}

static void expert_gate(struct kern_stream *stream, const struct kern_expert_gate *g)
{
    for (int64_t t = 0; t < g->ntok && !stream->status; t++)
        g->weights[t] = 1 / (1 + expf(-g->logits[t]));
}

static void expert_gate_grad(struct kern_stream *stream, const struct kern_expert_gate_grad *g)
{
    for (int64_t t = 0; t < g->ntok && !stream->status; t++)
        g->dlogits[t] = g->dweights[t] * g->weights[t] * (1 - g->weights[t]);
}

const struct kern_expert_ops cpu_expert_ops = { .route = expert_route,
                                                .route_grad = expert_route_grad,
                                                .rows = expert_rows,
                                                .sum = expert_sum,
                                                .act = expert_act,
                                                .act_grad = expert_act_grad,
                                                .gate = expert_gate,
                                                .gate_grad = expert_gate_grad };
