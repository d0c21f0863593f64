/* SPDX-License-Identifier: Apache-2.0 */
/* Mixtures of experts: routing, the order of rows, and the operations on rows, with their gradients. */
#include "harness.h"

#include <kernels/experts.h>
#include <kernels/stream.h>
#include <math.h>
#include <string.h>

struct shape {
    int64_t ntok, nexperts, top_k, unit, ncol;
    bool normalised, sigmoid, biased;
    double scale;
    int64_t ngroup, top_groups;
};

static const struct shape shapes[] = {
    { 1, 1, 1, 1, 1, true, false, false, 1, 0, 0 },       { 1, 4, 2, 8, 5, false, false, false, 1, 1, 1 },
    { 300, 8, 2, 8, 33, true, false, false, 1, 0, 0 },    { 257, 16, 4, 1, 70, false, false, false, 2.5, 0, 0 },
    { 40, 128, 8, 8, 1100, true, false, false, 3, 0, 0 }, { 3, 6, 6, 8, 2100, false, false, false, 1, 0, 0 },
    { 1, 2, 1, 1, 3, true, true, false, 1, 1, 1 },        { 211, 16, 4, 8, 40, true, true, true, 2.5, 4, 2 },
    { 60, 128, 8, 8, 20, false, true, true, 1, 8, 4 },    { 50, 9, 3, 8, 7, false, true, false, 0.5, 3, 1 },
    { 77, 12, 12, 1, 5, true, true, true, 1, 6, 6 },
};

struct routing {
    float *bias; /* (nexperts) or NULL */
    float *logits, *weights, *dweights;
    int32_t *experts, *rows, *choices;
    int64_t *starts, nrow;
};

/* Some logits are equal, and one expert is chosen by nobody if there are several. */
static void fill(struct rig *rig, const struct shape *s, float *logits)
{
    for (int64_t i = 0; i < s->ntok * s->nexperts; i++) {
        logits[i] = (float)(round(rig_uniform(rig) * 12) / 2);
        if (i % s->nexperts == 1 && s->top_k < s->nexperts)
            logits[i] = -30;
    }
}

static struct kern_router router(const struct shape *s, const struct routing *r)
{
    return (struct kern_router){ .nexperts = s->nexperts,
                                 .top_k = s->top_k,
                                 .sigmoid = s->sigmoid,
                                 .normalised = s->normalised,
                                 .scale = (float)s->scale,
                                 .bias = r->bias,
                                 .ngroup = s->ngroup,
                                 .top_groups = s->top_groups };
}

static struct routing route(struct rig *rig, const struct shape *s)
{
    const int64_t nchoices = s->ntok * s->top_k, most = kern_route_rows(s->ntok, s->nexperts, s->top_k, s->unit);
    struct routing r = { .bias = s->biased ? float_zeros(s->nexperts) : NULL,
                         .logits = float_zeros(s->ntok * s->nexperts),
                         .weights = float_zeros(nchoices),
                         .dweights = float_zeros(nchoices),
                         .experts = must_alloc((size_t)nchoices * sizeof(int32_t)),
                         .rows = must_alloc((size_t)nchoices * sizeof(int32_t)),
                         .choices = must_alloc((size_t)most * sizeof(int32_t)),
                         .starts = must_alloc((size_t)(s->nexperts + 1) * sizeof(int64_t)) };
    fill(rig, s, r.logits);
    for (int64_t e = 0; e < s->nexperts && r.bias; e++)
        r.bias[e] = (float)rig_uniform(rig);
    const struct kern_route k = { .router = router(s, &r),
                                  .ntok = s->ntok,
                                  .unit = s->unit,
                                  .logits = r.logits,
                                  .weights = r.weights,
                                  .experts = r.experts,
                                  .rows = r.rows,
                                  .choices = r.choices,
                                  .starts = r.starts };
    rig->device->experts->route(rig->stream, &k);
    check_stream(rig);
    r.nrow = r.starts[s->nexperts];
    assert_true(r.nrow <= most);
    return r;
}

static void routing_free(struct routing *r)
{
    if (r->bias)
        must_free(r->bias);
    must_free(r->logits), must_free(r->weights), must_free(r->dweights), must_free(r->experts);
    must_free(r->rows), must_free(r->choices), must_free(r->starts);
}

/* By score, then by number. */
static void take_best(const float *scores, int64_t nscores, int64_t n, int32_t *best)
{
    for (int64_t k = 0; k < n; k++) {
        best[k] = -1;
        for (int32_t e = 0; e < nscores; e++) {
            bool taken = false;
            for (int64_t j = 0; j < k; j++)
                taken = taken || best[j] == e;
            if (!taken && (best[k] < 0 || scores[e] > scores[best[k]]))
                best[k] = e;
        }
    }
}

/* Rounded like those of the device: which of two nearly equal ones is the larger must not depend on it. */
static void score(const struct shape *s, const float *bias, const float *logits, float *scores)
{
    const int64_t each = s->ngroup > 1 ? s->nexperts / s->ngroup : s->nexperts;
    float sums[128];
    int32_t two[2], groups[128];
    for (int64_t e = 0; e < s->nexperts; e++)
        scores[e] = s->sigmoid ? 1 / (1 + expf(-logits[e])) + (bias ? bias[e] : 0) : logits[e];
    for (int64_t g = 0; g < s->ngroup && s->ngroup > 1; g++) {
        take_best(scores + g * each, each, 2, two);
        sums[g] = scores[g * each + two[0]] + scores[g * each + two[1]];
    }
    take_best(sums, s->ngroup > 1 ? s->ngroup : 0, s->ngroup > 1 ? s->top_groups : 0, groups);
    for (int64_t e = 0; e < s->nexperts && s->ngroup > 1; e++) {
        bool stays = false;
        for (int64_t g = 0; g < s->top_groups; g++)
            stays = stays || groups[g] == e / each;
        scores[e] = stays ? scores[e] : -1000;
    }
}

/* The weights of one token in fp64, and the score of each of its experts. */
static void token_weights(const struct shape *s, const float *bias, const float *logits, int32_t *experts,
                          double *weights)
{
    double all = 0, sum = 0;
    float scores[128];
    score(s, bias, logits, scores);
    take_best(scores, s->nexperts, s->top_k, experts);
    for (int64_t e = 0; e < s->nexperts; e++)
        all += exp((double)logits[e]);
    for (int64_t k = 0; k < s->top_k; k++) {
        const double x = (double)logits[experts[k]];
        sum += weights[k] = s->sigmoid ? 1 / (1 + exp(-x)) : exp(x) / all;
    }
    for (int64_t k = 0; k < s->top_k; k++)
        weights[k] *= s->scale / (s->normalised ? sum : 1);
}

static void check_routing(struct rig *rig, const struct shape *s, const struct routing *r)
{
    double *want = zeros(s->ntok * s->top_k);
    int32_t experts[128];
    for (int64_t t = 0; t < s->ntok; t++) {
        token_weights(s, r->bias, r->logits + t * s->nexperts, experts, want + t * s->top_k);
        for (int64_t k = 0; k < s->top_k; k++)
            assert_int_equal(r->experts[t * s->top_k + k], experts[k]);
    }
    check_floats(rig, r->weights, s->ntok * s->top_k, want, 1e-6, "weights of experts");
    must_free(want);
    assert_int_equal(r->starts[0], 0);
    for (int64_t e = 0; e < s->nexperts; e++) {
        int64_t last = -1, n = 0;
        assert_int_equal(r->starts[e] % s->unit, 0);
        for (int64_t row = r->starts[e]; row < r->starts[e + 1]; row++) {
            const int32_t choice = r->choices[row];
            assert_true(choice < 0 || (choice > last && r->experts[choice] == e && r->rows[choice] == row));
            assert_true(n == 0 || choice < 0 || row - r->starts[e] == n); /* padding comes last */
            last = choice < 0 ? last : choice;
            n += choice >= 0;
        }
        assert_int_equal(r->starts[e + 1] - r->starts[e], (n + s->unit - 1) / s->unit * s->unit);
    }
}

/* p: the softmax of a token over all experts, in fp64. */
static void softmax(const struct shape *s, const float *logits, double *p)
{
    double sum = 0;
    for (int64_t e = 0; e < s->nexperts; e++)
        sum += p[e] = exp((double)logits[e]);
    for (int64_t e = 0; e < s->nexperts; e++)
        p[e] /= sum;
}

/* ∂weight[k]/∂logit[e] of one token. own: e is the expert of k; chosen: it is one of the token's. */
static double slope(const struct shape *s, double weight, double logit, double sum, bool own, bool chosen)
{
    const double p = s->sigmoid ? 1 / (1 + exp(-logit)) : exp(logit) / sum,
                 less = s->sigmoid ? p * (1 - p) : 1; /* the softmax is divided by its sum anyway */
    if (!s->sigmoid)
        return weight * ((own ? 1 : 0) - (s->normalised && !chosen ? 0 : p));
    return !chosen ? 0 : !s->normalised ? (own ? s->scale * less : 0) : less / sum * ((own ? s->scale : 0) - weight);
}

/* Adds the gradients of a token's logits to want (nexperts). slopes: (nexperts) or NULL. */
static void token_grads(const struct shape *s, const struct routing *r, int64_t t, const float *slopes, double *want)
{
    const float *logits = r->logits + t * s->nexperts, *dweights = r->dweights + t * s->top_k;
    double weights[128], p[128], sum = 0, mean = 0;
    int32_t experts[128];
    bool chosen[128] = { false };
    token_weights(s, r->bias, logits, experts, weights);
    softmax(s, logits, p);
    for (int64_t e = 0; e < s->nexperts; e++) {
        sum += s->sigmoid || s->normalised ? 0 : exp((double)logits[e]);
        mean += slopes ? (double)slopes[e] * p[e] : 0;
    }
    for (int64_t k = 0; k < s->top_k; k++) {
        const double x = (double)logits[experts[k]];
        sum += !s->normalised ? 0 : s->sigmoid ? 1 / (1 + exp(-x)) : exp(x);
        chosen[experts[k]] = true;
    }
    for (int64_t e = 0; e < s->nexperts; e++) {
        for (int64_t k = 0; k < s->top_k; k++)
            want[e] += (double)dweights[k] * slope(s, weights[k], (double)logits[e], sum, experts[k] == e, chosen[e]);
        want[e] += slopes ? p[e] * ((double)slopes[e] - mean) : 0;
    }
}

/* slopes: (nexperts) or NULL */
static void check_route_grad(struct rig *rig, const struct shape *s, struct routing *r, const float *slopes)
{
    float *dlogits = float_zeros(s->ntok * s->nexperts);
    double *want = zeros(s->ntok * s->nexperts);
    const int64_t nsloped = (s->ntok + 1) / 2;
    for (int64_t i = 0; i < s->ntok * s->top_k; i++)
        r->dweights[i] = (float)rig_uniform(rig);
    for (int64_t t = 0; t < s->ntok; t++)
        token_grads(s, r, t, t < nsloped ? slopes : NULL, want + t * s->nexperts);
    const struct kern_route_grad g = { .router = router(s, r),
                                       .ntok = s->ntok,
                                       .slopes = slopes,
                                       .nsloped = nsloped,
                                       .logits = r->logits,
                                       .weights = r->weights,
                                       .dweights = r->dweights,
                                       .experts = r->experts,
                                       .dlogits = dlogits };
    rig->device->experts->route_grad(rig->stream, &g);
    check_floats(rig, dlogits, s->ntok * s->nexperts, want, 2e-6, "gradient of logits");
    must_free(want), must_free(dlogits);
}

/* Of two layers with the same routing. */
static void check_balance(struct rig *rig, const struct shape *s, struct routing *r)
{
    const int64_t n = s->nexperts;
    double *want = zeros(2 * n), *slopes = zeros(n), *loss = zeros(1), p[128], wanted = 3;
    float *sums = float_zeros(2 * n), *got = float_zeros(n), *scratch = float_zeros(kern_row_blocks(s->ntok) * n);
    const struct kern_expert_load load = { .ntok = s->ntok,
                                           .nexperts = n,
                                           .top_k = s->top_k,
                                           .logits = r->logits,
                                           .experts = r->experts,
                                           .choices = sums,
                                           .probs = sums + n,
                                           .scratch = scratch };
    *loss = 3;
    rig->device->experts->load(rig->stream, &load);
    rig->device->experts->load(rig->stream, &load);
    for (int64_t t = 0; t < s->ntok; t++) {
        softmax(s, r->logits + t * n, p);
        for (int64_t e = 0; e < n; e++)
            want[n + e] += 2 * p[e];
        for (int64_t k = 0; k < s->top_k; k++)
            want[r->experts[t * s->top_k + k]] += 2;
    }
    const double nrow = 2 * (double)s->ntok;
    for (int64_t e = 0; e < n; e++) {
        assert_true((double)sums[e] == want[e] && fabs((double)sums[n + e] - want[n + e]) <= 1e-5 * nrow);
        slopes[e] = 0.25 * (double)n * want[e] / nrow / nrow;
        wanted += 7 * (double)n * want[e] / nrow * want[n + e] / nrow;
    }
    const struct kern_expert_balance balance = { .nexperts = n,
                                                 .nrow = 2 * s->ntok,
                                                 .choices = sums,
                                                 .probs = sums + n,
                                                 .weight = 7,
                                                 .sum = loss,
                                                 .scale = 0.25f,
                                                 .slopes = got };
    rig->device->experts->balance(rig->stream, &balance);
    check_stream(rig);
    assert_true(fabs(*loss - wanted) <= 1e-5 * wanted);
    check_floats(rig, got, n, slopes, 1e-6, "slopes");
    for (int64_t e = 0; e < n; e++)
        got[e] *= (float)(nrow / (double)n); /* as large as the other gradients */
    check_route_grad(rig, s, r, got);
    must_free(sums), must_free(want), must_free(slopes), must_free(got), must_free(scratch);
    must_free(loss);
}

static void check_rows(struct rig *rig, const struct shape *s, const struct routing *r)
{
    struct matrix x = matrix_random(rig, s->ntok, s->ncol, rig->dtype, 1), y = matrix_new(r->nrow, s->ncol, rig->dtype),
                  sum = matrix_random(rig, s->ntok, s->ncol, rig->dtype, 1);
    double *want = zeros(r->nrow * s->ncol), *total = zeros(s->ntok * s->ncol);
    for (int64_t i = 0; i < r->nrow * s->ncol; i++) {
        const int32_t choice = r->choices[i / s->ncol];
        want[i] = choice < 0 ? 0 : at(&x, choice / s->top_k, i % s->ncol);
    }
    const struct kern_expert_rows rows = {
        .nrow = r->nrow, .ncol = s->ncol, .top_k = s->top_k, .choices = r->choices, .src = cview(&x), .dst = view(&y)
    };
    rig->device->experts->rows(rig->stream, &rows);
    check_matrix(rig, &y, want, 0, "rows of experts");
    for (int64_t i = 0; i < s->ntok * s->ncol; i++) {
        total[i] = at(&sum, i / s->ncol, i % s->ncol);
        for (int64_t k = 0; k < s->top_k; k++)
            total[i] += at(&y, r->rows[i / s->ncol * s->top_k + k], i % s->ncol);
    }
    const struct kern_expert_sum add = { .ntok = s->ntok,
                                         .ncol = s->ncol,
                                         .top_k = s->top_k,
                                         .rows = r->rows,
                                         .src = cview(&y),
                                         .add = cview(&sum),
                                         .dst = view(&sum) };
    rig->device->experts->sum(rig->stream, &add);
    check_matrix(rig, &sum, total, 1e-6, "sum of experts");
    must_free(want), must_free(total);
    matrix_free(&x), matrix_free(&y), matrix_free(&sum);
}

/* f of gate and up, and its derivatives. slope 0: none. */
struct gated {
    double f, dgate, dup;
};

static struct gated gated_of(double gate, double up, double slope, double limit)
{
    if (slope <= 0) {
        const double sig = 1 / (1 + exp(-gate));
        return (struct gated){ gate * sig * up, up * sig * (1 + gate * (1 - sig)), gate * sig };
    }
    const double g = fmin(gate, limit), u = fmax(-limit, fmin(up, limit)), sig = 1 / (1 + exp(-slope * g));
    return (struct gated){ g * sig * (u + 1), gate > limit ? 0 : (u + 1) * sig * (1 + slope * g * (1 - sig)),
                           fabs(up) > limit ? 0 : g * sig };
}

/* in_turn: gate and up are columns of one matrix, one after the other. */
static void check_act(struct rig *rig, const struct shape *s, const struct routing *r, float slope, bool in_turn)
{
    const float limit = 1.5f;
    const int64_t n = r->nrow * s->ncol, nchoices = s->ntok * s->top_k;
    struct matrix gate = matrix_random(rig, r->nrow, s->ncol, rig->dtype, 6),
                  up = matrix_random(rig, r->nrow, s->ncol, rig->dtype, 2),
                  dy = matrix_random(rig, r->nrow, s->ncol, rig->dtype, 1),
                  both = matrix_new(r->nrow, 2 * s->ncol, rig->dtype), y = matrix_new(r->nrow, s->ncol, rig->dtype);
    double *want = zeros(n), *dgate = zeros(n), *dup = zeros(n), *dboth = zeros(2 * n), *dweights = zeros(nchoices);
    for (int64_t i = 0; i < n; i++) {
        const int32_t choice = r->choices[i / s->ncol];
        put(&both, i / s->ncol, 2 * (i % s->ncol), at(&gate, i / s->ncol, i % s->ncol));
        put(&both, i / s->ncol, 2 * (i % s->ncol) + 1, at(&up, i / s->ncol, i % s->ncol));
        if (choice < 0)
            continue;
        const double d = at(&dy, i / s->ncol, i % s->ncol), w = (double)r->weights[choice];
        const struct gated x = gated_of(at(&gate, i / s->ncol, i % s->ncol), at(&up, i / s->ncol, i % s->ncol),
                                        (double)slope, (double)limit);
        want[i] = w * x.f;
        dup[i] = dboth[2 * i + 1] = w * d * x.dup;
        dgate[i] = dboth[2 * i] = w * d * x.dgate;
        dweights[choice] += d * x.f;
    }
    const struct kern_expert_act a = { .nrow = r->nrow,
                                       .ncol = s->ncol,
                                       .choices = r->choices,
                                       .weights = r->weights,
                                       .gate = cview(in_turn ? &both : &gate),
                                       .up = in_turn ? (struct kern_cmat){ 0 } : cview(&up),
                                       .slope = slope,
                                       .limit = limit,
                                       .y = view(&y) };
    rig->device->experts->act(rig->stream, &a);
    check_matrix(rig, &y, want, 1e-6, "activation");
    const struct kern_expert_act_grad g = { .nrow = r->nrow,
                                            .ncol = s->ncol,
                                            .choices = r->choices,
                                            .weights = r->weights,
                                            .dweights = r->dweights,
                                            .gate = a.gate,
                                            .up = a.up,
                                            .dy = cview(&dy),
                                            .slope = slope,
                                            .limit = limit,
                                            .dgate = view(in_turn ? &both : &gate),
                                            .dup = in_turn ? (struct kern_mat){ 0 } : view(&up),
                                            .y = view(&dy) };
    rig->device->experts->act_grad(rig->stream, &g);
    if (in_turn) {
        check_matrix(rig, &both, dboth, 1e-6, "dgate and dup over gate and up");
    } else {
        check_matrix(rig, &gate, dgate, 1e-6, "dgate over gate");
        check_matrix(rig, &up, dup, 1e-6, "dup over up");
    }
    check_matrix(rig, &dy, want, 1e-6, "activation anew over dy");
    check_floats(rig, r->dweights, nchoices, dweights, 4e-6, "gradient of weights");
    must_free(want), must_free(dgate), must_free(dup), must_free(dboth), must_free(dweights);
    matrix_free(&gate), matrix_free(&up), matrix_free(&both), matrix_free(&dy), matrix_free(&y);
}

static void check_bias(struct rig *rig, const struct shape *s, const struct routing *r)
{
    const int64_t n = r->nrow * s->ncol, nchoices = s->ntok * s->top_k;
    struct matrix bias = matrix_random(rig, 1, s->ncol, rig->dtype, 1),
                  y = matrix_random(rig, r->nrow, s->ncol, rig->dtype, 1),
                  dy = matrix_random(rig, r->nrow, s->ncol, rig->dtype, 1);
    double *want = zeros(n), *dbias_want = zeros(s->ncol), *dweights_want = zeros(nchoices);
    float *dbias = float_zeros(s->ncol), *scratch = float_zeros(kern_sum_rows_scratch(r->nrow, s->ncol));
    for (int64_t i = 0; i < nchoices; i++)
        dweights_want[i] = (double)(r->dweights[i] = (float)i);
    for (int64_t j = 0; j < s->ncol; j++)
        dbias_want[j] = (double)(dbias[j] = (float)rig_uniform(rig));
    for (int64_t i = 0; i < n; i++) {
        const int64_t j = i % s->ncol, choice = r->choices[i / s->ncol];
        const double w = choice < 0 ? 0 : (double)r->weights[choice], b = at(&bias, 0, j), d = at(&dy, i / s->ncol, j);
        want[i] = at(&y, i / s->ncol, j) + w * b;
        dbias_want[j] += w * d;
        if (choice >= 0)
            dweights_want[choice] += d * b;
    }
    const struct kern_expert_bias add = { .nrow = r->nrow,
                                          .ncol = s->ncol,
                                          .choices = r->choices,
                                          .weights = r->weights,
                                          .bias = cview(&bias),
                                          .y = view(&y) };
    rig->device->experts->bias(rig->stream, &add);
    check_matrix(rig, &y, want, 1e-6, "weighted bias");
    struct kern_expert_bias_grad g = { .nrow = r->nrow,
                                       .ncol = s->ncol,
                                       .choices = r->choices,
                                       .weights = r->weights,
                                       .bias = cview(&bias),
                                       .dy = cview(&dy),
                                       .dweights = r->dweights,
                                       .dbias = dbias,
                                       .scratch = scratch };
    rig->device->experts->bias_grad(rig->stream, &g);
    check_floats(rig, dbias, s->ncol, dbias_want, 4e-6, "gradient of a weighted bias");
    check_floats(rig, r->dweights, nchoices, dweights_want, 4e-6, "a weighted bias's part of its weights");
    for (int64_t i = 0; i < nchoices; i++)
        dweights_want[i] = 2 * dweights_want[i] - (double)i;
    g.dbias = NULL, g.scratch = NULL;
    rig->device->experts->bias_grad(rig->stream, &g);
    check_floats(rig, r->dweights, nchoices, dweights_want, 4e-6, "the same again");
    must_free(want), must_free(dbias_want), must_free(dweights_want), must_free(dbias), must_free(scratch);
    matrix_free(&bias), matrix_free(&y), matrix_free(&dy);
}

/* Every row is a token with a weight of its own: the sigmoid of its logit. */
static void check_shared(struct rig *rig, int64_t ntok, int64_t ncol, bool weighs)
{
    float *logits = float_zeros(ntok), *weights = float_zeros(ntok), *dweights = float_zeros(ntok);
    double *want = zeros(ntok), *act = zeros(ntok * ncol), *dlogits = zeros(ntok);
    struct matrix gate = matrix_random(rig, ntok, ncol, rig->dtype, 6),
                  up = matrix_random(rig, ntok, ncol, rig->dtype, 2),
                  dy = matrix_random(rig, ntok, ncol, rig->dtype, 1);
    for (int64_t t = 0; t < ntok; t++) {
        logits[t] = (float)(8 * rig_uniform(rig));
        want[t] = 1 / (1 + exp(-(double)logits[t]));
    }
    const struct kern_expert_gate g = { .ntok = ntok, .logits = logits, .weights = weights };
    rig->device->experts->gate(rig->stream, &g);
    check_floats(rig, weights, ntok, want, 1e-6, "shared weights");
    for (int64_t i = 0; i < ntok * ncol; i++) {
        const double x = at(&gate, i / ncol, i % ncol), y = x / (1 + exp(-x)) * at(&up, i / ncol, i % ncol),
                     w = weighs ? (double)weights[i / ncol] : 1;
        act[i] = w * y;
        dlogits[i / ncol] += at(&dy, i / ncol, i % ncol) * y * w * (1 - w);
    }
    const struct kern_expert_act_grad a = { .nrow = ntok,
                                            .ncol = ncol,
                                            .weights = weighs ? weights : NULL,
                                            .dweights = dweights,
                                            .gate = cview(&gate),
                                            .up = cview(&up),
                                            .dy = cview(&dy),
                                            .dgate = view(&gate),
                                            .dup = view(&up),
                                            .y = view(&dy) };
    rig->device->experts->act_grad(rig->stream, &a);
    check_matrix(rig, &dy, act, 1e-6, "shared activation");
    const struct kern_expert_gate_grad d = {
        .ntok = ntok, .weights = weights, .dweights = dweights, .dlogits = dweights
    };
    rig->device->experts->gate_grad(rig->stream, &d);
    check_floats(rig, dweights, ntok, dlogits, 4e-6, "gradient of shared logits");
    must_free(logits), must_free(weights), must_free(dweights), must_free(want), must_free(act), must_free(dlogits);
    matrix_free(&gate), matrix_free(&up), matrix_free(&dy);
}

static void experts(struct rig *rig)
{
    check_shared(rig, 1, 1, true);
    check_shared(rig, 150, 1100, true);
    check_shared(rig, 33, 70, false);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        if (rig->slow && shapes[i].ntok * shapes[i].ncol > 10000)
            continue;
        struct routing r = route(rig, &shapes[i]);
        check_routing(rig, &shapes[i], &r);
        check_route_grad(rig, &shapes[i], &r, NULL);
        if (!shapes[i].sigmoid)
            check_balance(rig, &shapes[i], &r);
        check_rows(rig, &shapes[i], &r);
        check_act(rig, &shapes[i], &r, 0, i % 2);
        check_act(rig, &shapes[i], &r, 1.702f, i % 2 == 0);
        check_bias(rig, &shapes[i], &r);
        routing_free(&r);
    }
}

static void not_a_number_in(struct rig *rig, bool sigmoid)
{
    static const float some[6] = { 1, NAN, 2, NAN, NAN, NAN };
    float *logits = float_zeros(6), *weights = float_zeros(4);
    int32_t *chosen = must_alloc(3 * 4 * sizeof *chosen), *rows = chosen + 4, *choices = chosen + 8;
    int64_t *starts = must_alloc(4 * sizeof *starts);
    memcpy(logits, some, sizeof some);
    const struct kern_route k = {
        .router = { .nexperts = 3, .top_k = 2, .sigmoid = sigmoid, .normalised = true, .scale = 1 },
        .ntok = 2,
        .unit = 1,
        .logits = logits,
        .weights = weights,
        .experts = chosen,
        .rows = rows,
        .choices = choices,
        .starts = starts
    };
    rig->device->experts->route(rig->stream, &k);
    check_stream(rig);
    assert_int_equal(starts[3], 4);
    assert_true(isnan(weights[0]) && isnan(weights[2]));
    assert_int_equal(chosen[0], 1);
    must_free(logits), must_free(weights), must_free(chosen), must_free(starts);
}

static void not_a_number(struct rig *rig)
{
    not_a_number_in(rig, false);
    not_a_number_in(rig, true);
}

static void test_experts(void **state)
{
    (void)state;
    rig_run_all(experts);
}

static void test_not_a_number(void **state)
{
    (void)state;
    rig_run_all(not_a_number);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_experts), cmocka_unit_test(test_not_a_number) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
