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

static int read_prompt(struct lane *lane, struct decode *d, struct serve_task *t, float *first)
{
    struct serve_sample *x = &t->sample;
    const float *logits = NULL;
    int rc = x->prompt_logprobs ? score_prompt(lane, t->adapter, x, &t->err) : 0;
    if (!rc && x->prompt_top_k)
        rc = read_tops(lane->s, d, x, &logits, &t->err);
    else if (!rc)
        rc = decode_prompt(d, NULL, x->prompt, (int64_t)x->nprompt, &logits, &t->err);
    if (!rc)
        memcpy(first, logits, (size_t)lane->s->job.model.nvocab * sizeof *first);
    return rc;
}

/* ---- A sample */

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

static int add_token(struct lane *lane, const struct serve_sample *x, uint32_t number, const float *logits,
                     struct serve_sampled *one, struct fsdpck_error *err)
{
    const int64_t nvocab = lane->s->job.model.nvocab;
    const double whole = log_sum(logits, nvocab);
    const size_t at = one->n, k = x->top_k;
    uint32_t id;
    int rc = choose_token(lane->choose, &x->rule, logits, number, at, &id, err);
    if (rc)
        return rc;
    one->ids[at] = (int32_t)id;
    one->logprobs[at] = (float)((double)logits[id] - whole);
    if (k)
        find_top(logits, nvocab, whole, (uint32_t)k, one->top_ids + at * k, one->top_logprobs + at * k);
    one->n++;
    one->stopped = choose_is_stop(&x->rule, id) || (x->ends && x->ends(x->ctx, one->ids, one->n));
    return 0;
}

static int run_sample(struct lane *lane, struct decode *d, const struct serve_sample *x, uint32_t number,
                      const float *first, struct fsdpck_error *err)
{
    struct serve_sampled *one = &x->samples[number];
    const float *logits = first;
    int rc = make_room(x, one, err);
    decode_rewind(d, (int64_t)x->nprompt);
    choose_begin(lane->choose, (const uint32_t *)x->prompt, x->nprompt);
    while (!rc && one->n < x->rule.max_new_tokens && !one->stopped) {
        if (one->n)
            rc = decode_token(d, NULL, one->ids[one->n - 1], &logits, err);
        if (!rc)
            rc = add_token(lane, x, number, logits, one, err);
    }
    return rc;
}

int generate_run(struct lane *lane, struct serve_task *t)
{
    struct serve_sample *x = &t->sample;
    const int64_t nprompt = (int64_t)x->nprompt, most = nprompt + (int64_t)x->rule.max_new_tokens;
    struct compute *c;
    struct decode *d = NULL;
    float *first = malloc((size_t)lane->s->job.model.nvocab * sizeof *first);
    x->samples = calloc(x->nsamples, sizeof *x->samples);
    int rc = first && x->samples ? adapter_compute(lane, t->adapter->held, &c, &t->err)
                                 : fsdpck_error_nomem(&t->err, x->nsamples * sizeof *x->samples);
    if (!rc)
        rc = decode_new(c, nprompt, most, NULL, &d, &t->err);
    if (!rc)
        rc = read_prompt(lane, d, t, first);
    for (uint32_t i = 0; i < x->nsamples && !rc; i++)
        rc = run_sample(lane, d, x, i, first, &t->err);
    decode_free(d);
    free(first);
    if (rc)
        serve_sample_free(x);
    return rc;
}
