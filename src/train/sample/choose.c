/* SPDX-License-Identifier: Apache-2.0 */
/* Applies the steps in the order of transformers: repetition penalty, temperature, top-k, top-p. The draw uses Philox
 * with (seed, sample, token): it does not depend on the rank that draws, or on earlier draws. */
#include "sample/choose.h"

#include <kernels/random.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

struct candidate {
    double weight; /* first the logit, then exp(logit) */
    uint32_t id;
};

struct choose {
    int64_t nvocab;
    unsigned char *seen;    /* (nvocab) */
    float *logits;          /* (nvocab) after the penalty */
    struct candidate *list; /* (nvocab) */
};

int choose_new(int64_t nvocab, struct choose **out, struct fsdpck_error *err)
{
    struct choose *c = calloc(1, sizeof *c);
    *out = NULL;
    if (c) {
        c->nvocab = nvocab;
        c->seen = calloc((size_t)nvocab, 1);
        c->logits = calloc((size_t)nvocab, sizeof *c->logits);
        c->list = calloc((size_t)nvocab, sizeof *c->list);
    }
    if (!c || !c->seen || !c->logits || !c->list) {
        choose_free(c);
        return fsdpck_error_nomem(err, (size_t)nvocab * sizeof *c->list);
    }
    *out = c;
    return 0;
}

void choose_free(struct choose *c)
{
    if (!c)
        return;
    free(c->seen);
    free(c->logits);
    free(c->list);
    free(c);
}

static void see(struct choose *c, uint32_t id)
{
    if (id < (uint64_t)c->nvocab)
        c->seen[id] = 1;
}

void choose_begin(struct choose *c, const uint32_t *ids, size_t count)
{
    memset(c->seen, 0, (size_t)c->nvocab);
    for (size_t i = 0; i < count; i++)
        see(c, ids[i]);
}

bool choose_is_stop(const struct sample_rule *rule, uint32_t id)
{
    for (size_t i = 0; i < rule->nstops; i++) {
        if (rule->stops[i] == id)
            return true;
    }
    return false;
}

static const float *penalize(struct choose *c, const float *logits, double penalty)
{
    if (penalty == 1)
        return logits;
    for (int64_t i = 0; i < c->nvocab; i++) {
        float x = logits[i];
        c->logits[i] = !c->seen[i] ? x : x < 0 ? x * (float)penalty : x / (float)penalty;
    }
    return c->logits;
}

/* Index of the first maximum; -1 if no logit is finite. */
static int64_t largest(const float *logits, int64_t n)
{
    int64_t best = -1;
    for (int64_t i = 0; i < n; i++) {
        if (logits[i] > (best < 0 ? -INFINITY : logits[best]))
            best = i;
    }
    return best >= 0 && isfinite(logits[best]) ? best : -1;
}

/* Descending by weight; equal weights by ascending id. */
static int by_weight(const void *x, const void *y)
{
    const struct candidate *a = x, *b = y;
    return a->weight != b->weight ? (a->weight < b->weight ? 1 : -1) : (a->id > b->id) - (a->id < b->id);
}

static void sift_down(struct candidate *heap, size_t n, size_t at)
{
    for (size_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && by_weight(&heap[child + 1], &heap[child]) > 0)
            child++;
        if (by_weight(&heap[at], &heap[child]) > 0)
            return;
        const struct candidate moved = heap[at];
        heap[at] = heap[child];
        heap[child] = moved;
    }
}

/* Collects the k likeliest candidates into list, with a heap whose top is the least likely of them. */
static size_t keep_top_k(struct choose *c, const float *logits, size_t k)
{
    size_t n = 0;
    for (int64_t i = 0; i < c->nvocab; i++) {
        const struct candidate one = { (double)logits[i], (uint32_t)i };
        if (!(logits[i] > -INFINITY))
            continue;
        if (n < k) {
            c->list[n++] = one;
            for (size_t at = n / 2; n == k && at-- > 0;)
                sift_down(c->list, n, at);
        } else if (by_weight(&one, &c->list[0]) < 0) {
            c->list[0] = one;
            sift_down(c->list, n, 0);
        }
    }
    return n;
}

/* Replaces logits by the weights of the softmax; returns their sum. */
static double softmax(struct candidate *list, size_t n, double top, double temperature)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += list[i].weight = exp((list[i].weight - top) / temperature);
    return sum;
}

/* Keeps the likeliest candidates that together reach top_p of the weight. The candidates with at most 1/n of the other
 * 1 - top_p can all be dropped, so they need not be sorted. */
static size_t keep_top_p(struct candidate *list, size_t n, double sum, double top_p)
{
    const double rest = (1 - top_p) * sum, least = rest / (double)n;
    double below = 0;
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        if (list[i].weight > least)
            list[kept++] = list[i];
        else
            below += list[i].weight;
    }
    qsort(list, kept, sizeof *list, by_weight);
    while (kept > 1 && below + list[kept - 1].weight <= rest)
        below += list[--kept].weight;
    return kept;
}

/* Uniform in [0, 1) with 53 bits. */
static double draw(uint64_t seed, uint64_t number, uint64_t at)
{
    static const char name[] = "sample";
    const uint32_t key[2] = { (uint32_t)seed, (uint32_t)(seed >> 32) };
    const uint32_t counter[4] = { (uint32_t)number, (uint32_t)(number >> 32), (uint32_t)at,
                                  XXH32(name, sizeof name - 1, 0) };
    uint32_t out[4];
    kern_philox4x32(counter, key, out);
    return ((double)(out[0] >> 5) * 67108864 + (double)(out[1] >> 6)) / 9007199254740992.0;
}

static uint32_t pick(const struct candidate *list, size_t n, double u)
{
    double sum = 0, passed = 0;
    for (size_t i = 0; i < n; i++)
        sum += list[i].weight;
    for (size_t i = 0; i + 1 < n; i++) {
        passed += list[i].weight;
        if (passed > u * sum)
            return list[i].id;
    }
    return list[n - 1].id;
}

int choose_token(struct choose *c, const struct sample_rule *rule, const float *logits, uint64_t number, uint64_t at,
                 uint32_t *id, struct fsdpck_error *err)
{
    logits = penalize(c, logits, rule->repetition_penalty);
    int64_t best = largest(logits, c->nvocab);
    if (best < 0)
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, NULL,
                                "no logit of token %llu is finite: are there NaN or infinities in the weights?",
                                (unsigned long long)at);
    if (rule->temperature == 0) {
        *id = (uint32_t)best;
    } else {
        const size_t nvocab = (size_t)c->nvocab;
        size_t n = keep_top_k(c, logits, rule->top_k && rule->top_k < nvocab ? (size_t)rule->top_k : nvocab);
        double sum = softmax(c->list, n, (double)logits[best], rule->temperature);
        if (rule->top_p < 1)
            n = keep_top_p(c->list, n, sum, rule->top_p);
        *id = pick(c->list, n, draw(rule->seed, number, at));
    }
    see(c, *id);
    return 0;
}
