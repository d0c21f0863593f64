/* SPDX-License-Identifier: Apache-2.0 */
/* Samples from a frozen adapter, or from the base. Log-probabilities are those of the model at temperature 1, before
 * top-k and top-p. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/decode.h"
#include "serve/serve_impl.h"

void serve_sample_free(struct serve_sample *x)
{
    for (uint32_t i = 0; x->samples && i < x->nsamples; i++) {
        free(x->samples[i].ids);
        free(x->samples[i].logprobs);
        free(x->samples[i].top_ids);
        free(x->samples[i].top_logprobs);
    }
    free(x->samples);
    free(x->logprobs);
    free(x->top_ids);
    free(x->top_logprobs);
    x->samples = NULL;
    x->logprobs = x->top_logprobs = NULL;
    x->top_ids = NULL;
}

/* ---- Of one row of logits */

/* ln Σ exp(logits). */
static double log_sum(const float *logits, int64_t n)
{
    double sum = 0;
    float top = -INFINITY;
    for (int64_t i = 0; i < n; i++)
        top = logits[i] > top ? logits[i] : top;
    for (int64_t i = 0; i < n; i++)
        sum += exp((double)logits[i] - (double)top);
    return log(sum) + (double)top;
}

/* The k likeliest, descending; of equals, the lowest id first. */
static void find_top(const float *logits, int64_t n, double whole, uint32_t k, int32_t *ids, float *logprobs)
{
    uint32_t found = 0;
    for (int64_t i = 0; i < n; i++) {
        const float x = (float)((double)logits[i] - whole);
        if (found == k && !(x > logprobs[k - 1]))
            continue;
        uint32_t at = found < k ? found++ : k - 1;
        for (; at > 0 && x > logprobs[at - 1]; at--) {
            ids[at] = ids[at - 1];
            logprobs[at] = logprobs[at - 1];
        }
        ids[at] = (int32_t)i;
        logprobs[at] = x;
    }
}

/* ---- The prompt */

/* By the forward pass of training, so that its log-probabilities are the trainer's to the bit. */
static int score_prompt(struct lane *lane, struct serve_adapter *a, struct serve_sample *x, struct fsdpck_error *err)
{
    int32_t *targets = malloc(x->nprompt * sizeof *targets);
    x->logprobs = malloc((x->nprompt + 1) * sizeof *x->logprobs);
    if (!targets || !x->logprobs) {
        free(targets);
        return fsdpck_error_nomem(err, x->nprompt * sizeof *targets);
    }
    memcpy(targets, x->prompt + 1, (x->nprompt - 1) * sizeof *targets);
    targets[x->nprompt - 1] = 0; /* its log-probability is not used */
    const struct serve_datum d = {
        .n = (int64_t)x->nprompt, .tokens = x->prompt, .targets = targets, .target_logprobs = x->logprobs + 1
    };
    struct serve_task pass = { .kind = SERVE_PASS, .adapter = a, .pass = { .data = &d, .ndata = 1 } };
    int rc = pass_plan(lane->s, &pass);
    if (!rc)
        rc = pass_run(lane, &pass, 0, 0, err);
    pass_drop(&pass);
    free(targets);
    x->logprobs[0] = NAN;
    return rc;
}

/* Token by token, because only the last token of a prompt has logits. */
static int read_tops(const struct serve *s, struct decode *d, struct serve_sample *x, const float **logits,
                     struct fsdpck_error *err)
{
    const int64_t n = s->job.model.nvocab;
    const size_t k = x->prompt_top_k;
    x->top_ids = calloc(x->nprompt * k, sizeof *x->top_ids);
    x->top_logprobs = calloc(x->nprompt * k, sizeof *x->top_logprobs);
    if (!x->top_ids || !x->top_logprobs)
        return fsdpck_error_nomem(err, x->nprompt * k * sizeof *x->top_logprobs);
    int rc = decode_prompt(d, NULL, x->prompt, 1, logits, err);
    for (size_t i = 1; i < x->nprompt && !rc; i++) {
        find_top(*logits, n, log_sum(*logits, n), (uint32_t)k, x->top_ids + i * k, x->top_logprobs + i * k);
        rc = decode_token(d, NULL, x->prompt[i], logits, err);
    }
    return rc;
}

/* The first unit of a task scores the prompt. */
static int read_prompt(struct lane *lane, struct decode *d, struct generate_unit *u, float *first)
{
    struct serve_sample *x = &u->t->sample;
    const float *logits = NULL;
    int rc = x->prompt_logprobs && u->number == 0 ? score_prompt(lane, u->t->adapter, x, &u->err) : 0;
    if (!rc && x->prompt_top_k && u->number == 0)
        rc = read_tops(lane->s, d, x, &logits, &u->err);
    else if (!rc)
        rc = decode_prompt(d, NULL, x->prompt, (int64_t)x->nprompt, &logits, &u->err);
    if (!rc)
        memcpy(first, logits, (size_t)lane->s->job.model.nvocab * sizeof *first);
    return rc;
}

/* ---- Samples that go on together */

enum { TOGETHER = 8 }; /* units of a lane */

/* A sequence that grows. */
struct growing {
    struct decode *decode;
    const float *logits; /* of the next token */
    uint32_t number;     /* of the sample in its task */
    bool ended;
};

/* A unit under way, or a free place. */
struct place {
    struct generate_unit u; /* u.t NULL: free */
    struct growing all[GENERATE_SAMPLES];
    uint32_t n;
};

/* The sequences that a lane generates together. */
struct group {
    struct lane *lane;
    struct place places[TOGETHER];
    /* Scratch: of the sequences that go on. */
    size_t n;
    struct decode *decodes[TOGETHER * GENERATE_SAMPLES];
    int32_t ids[TOGETHER * GENERATE_SAMPLES];
    const float *logits[TOGETHER * GENERATE_SAMPLES];
    struct growing *growing[TOGETHER * GENERATE_SAMPLES];
    struct place *place[TOGETHER * GENERATE_SAMPLES];
};

static int make_room(const struct serve_sample *x, struct serve_sampled *one, struct fsdpck_error *err)
{
    const size_t most = (size_t)x->rule.max_new_tokens;
    one->ids = calloc(most + 1, sizeof *one->ids);
    one->logprobs = calloc(most + 1, sizeof *one->logprobs);
    one->top_ids = calloc(most * x->top_k + 1, sizeof *one->top_ids);
    one->top_logprobs = calloc(most * x->top_k + 1, sizeof *one->top_logprobs);
    return one->ids && one->logprobs && one->top_ids && one->top_logprobs
               ? 0
               : fsdpck_error_nomem(err, most * sizeof *one->ids);
}

/* From g->logits. */
static void add_token(struct lane *lane, struct generate_unit *u, struct growing *g)
{
    const struct serve_sample *x = &u->t->sample;
    const int64_t nvocab = lane->s->job.model.nvocab;
    struct serve_sampled *one = &x->samples[g->number];
    const double whole = log_sum(g->logits, nvocab);
    const size_t at = one->n, k = x->top_k;
    uint32_t id;
    g->ended = choose_token(lane->choose, &x->rule, g->logits, g->number, at, &id, &u->err) != 0;
    if (g->ended)
        return;
    one->ids[at] = (int32_t)id;
    one->logprobs[at] = (float)((double)g->logits[id] - whole);
    if (k)
        find_top(g->logits, nvocab, whole, (uint32_t)k, one->top_ids + at * k, one->top_logprobs + at * k);
    one->n++;
    one->stopped = choose_is_stop(&x->rule, id) || (x->ends && x->ends(x->ctx, g->number, one->ids, one->n));
    g->ended = one->stopped || one->n == x->rule.max_new_tokens;
}

static uint32_t nsamples_of(const struct generate_unit *u)
{
    const size_t first = u->number * GENERATE_SAMPLES, left = u->t->sample.nsamples - first;
    return (uint32_t)(left < GENERATE_SAMPLES ? left : GENERATE_SAMPLES);
}

/* The first sample reads the prompt; the others begin with copies of its cache. */
static int begin_sample(struct lane *lane, struct place *p, uint32_t i, const struct compute *c, float *logits)
{
    struct serve_sample *x = &p->u.t->sample;
    struct growing *g = &p->all[i];
    const int64_t nprompt = (int64_t)x->nprompt, most = nprompt + (int64_t)x->rule.max_new_tokens;
    g->number = (uint32_t)(p->u.number * GENERATE_SAMPLES) + i;
    int rc = decode_new(c, i ? 1 : nprompt, most, NULL, &g->decode, &p->u.err);
    if (!rc)
        rc = make_room(x, &x->samples[g->number], &p->u.err);
    if (!rc)
        rc = i ? decode_copy(g->decode, p->all[0].decode, &p->u.err) : read_prompt(lane, g->decode, &p->u, logits);
    g->logits = logits;
    if (!rc)
        add_token(lane, &p->u, g);
    return rc;
}

static void begin(struct group *group, const struct generate_unit *u)
{
    struct lane *lane = group->lane;
    struct place *p = group->places;
    struct compute *c;
    while (p->u.t)
        p++;
    *p = (struct place){ .u = *u, .n = nsamples_of(u) };
    float *logits = malloc((size_t)lane->s->job.model.nvocab * sizeof *logits);
    int rc = logits ? adapter_compute(lane, u->t->adapter->held, &c, &p->u.err)
                    : fsdpck_error_nomem(&p->u.err, (size_t)lane->s->job.model.nvocab * sizeof *logits);
    for (uint32_t i = 0; i < p->n && !rc; i++)
        rc = begin_sample(lane, p, i, c, logits);
    free(logits);
}

static void list_live(struct group *group)
{
    group->n = 0;
    for (struct place *p = group->places; p < group->places + TOGETHER; p++) {
        for (uint32_t i = 0; p->u.t && !p->u.err.code && i < p->n; i++) {
            struct growing *g = &p->all[i];
            const struct serve_sampled *one = &p->u.t->sample.samples[g->number];
            if (g->ended)
                continue;
            group->decodes[group->n] = g->decode;
            group->ids[group->n] = one->ids[one->n - 1];
            group->growing[group->n] = g;
            group->place[group->n++] = p;
        }
    }
}

/* The next token of each. */
static void advance(struct group *group)
{
    struct fsdpck_error err = { 0 };
    list_live(group);
    const int rc = group->n ? decode_tokens(group->decodes, group->n, group->ids, group->logits, &err) : 0;
    for (size_t k = 0; k < group->n; k++) {
        struct growing *g = group->growing[k];
        g->logits = group->logits[k];
        if (rc)
            group->place[k]->u.err = err;
        else
            add_token(group->lane, &group->place[k]->u, g);
    }
}

static bool has_ended(const struct place *p)
{
    bool ended = true;
    for (uint32_t i = 0; i < p->n; i++)
        ended &= p->all[i].ended;
    return ended || p->u.err.code;
}

/* Gives back the units that have ended. Returns the number of the others. */
static size_t end(struct group *group)
{
    size_t left = 0;
    for (struct place *p = group->places; p < group->places + TOGETHER; p++) {
        if (!p->u.t)
            continue;
        if (!has_ended(p)) {
            left++;
            continue;
        }
        for (uint32_t i = 0; i < p->n; i++)
            decode_free(p->all[i].decode);
        queue_end_sample(group->lane, &p->u);
        p->u.t = NULL;
    }
    return left;
}

static void give_up(struct group *group)
{
    for (struct place *p = group->places; p < group->places + TOGETHER; p++)
        fsdpck_error_set(&p->u.err, FSDPCK_ERR_STOPPED, NULL, "the server ends");
}

int generate_plan(struct serve_task *t)
{
    struct serve_sample *x = &t->sample;
    x->samples = calloc(x->nsamples, sizeof *x->samples);
    t->nunits = (x->nsamples + GENERATE_SAMPLES - 1) / GENERATE_SAMPLES;
    return x->samples ? 0 : fsdpck_error_nomem(&t->err, x->nsamples * sizeof *x->samples);
}

void generate_run(struct lane *lane, const struct generate_unit *first)
{
    struct group *group = calloc(1, sizeof *group);
    struct generate_unit u = *first;
    size_t n = 0;
    if (!group) {
        fsdpck_error_nomem(&u.err, sizeof *group);
        queue_end_sample(lane, &u);
        return;
    }
    group->lane = lane;
    begin(group, &u);
    while ((n = end(group)) > 0) {
        if (queue_ends(lane->s)) {
            give_up(group);
            continue;
        }
        for (; n < TOGETHER && queue_take_sample(lane, &u); n++)
            begin(group, &u);
        advance(group);
    }
    free(group);
}
