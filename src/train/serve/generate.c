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

static int read_with(struct lane *lane, struct decode *d, struct serve_task *t, struct fsdpck_error *err)
{
    struct serve_sample *x = &t->sample;
    const size_t nbytes = (size_t)lane->s->job.model.nvocab * sizeof(float);
    const float *logits = NULL;
    int rc = x->prompt_logprobs ? score_prompt(lane, t->adapter, x, err) : 0;
    if (!rc && x->prompt_top_k)
        rc = read_tops(lane->s, d, x, &logits, err);
    else if (!rc)
        rc = decode_prompt(d, NULL, x->prompt, (int64_t)x->nprompt, &logits, err);
    if (!rc && !(x->read->logits = malloc(nbytes)))
        rc = fsdpck_error_nomem(err, nbytes);
    if (rc)
        return rc;
    memcpy(x->read->logits, logits, nbytes);
    return kv_share(&x->read->kv, decode_kv(d), err);
}

/* Sets x->read, from which all samples of the task go on. */
static int read_prompt(struct lane *lane, struct serve_task *t, struct fsdpck_error *err)
{
    struct compute *c;
    struct decode *d = NULL;
    int rc = adapter_compute(lane, t->adapter->held, &c, err);
    if (!rc)
        rc = decode_new_paged(c, (int64_t)t->sample.nprompt, lane->s->kv, &d, err);
    if (!rc)
        rc = read_with(lane, d, t, err);
    decode_free(d);
    if (!rc)
        queue_end_prompt(t);
    return rc;
}

/* ---- Samples that go on together */

enum { TOGETHER = 64 }; /* samples of a lane */

/* A sample under way, or a free place. */
struct place {
    struct generate_unit u; /* u.t NULL: free */
    struct decode *decode;
    const float *logits; /* of the next token */
    bool ended;
};

/* The samples that a lane generates together. */
struct group {
    struct lane *lane;
    struct place places[TOGETHER];
    /* Scratch: of the samples that go on. */
    size_t n;
    struct decode *decodes[TOGETHER];
    int32_t ids[TOGETHER];
    const float *logits[TOGETHER];
    struct place *live[TOGETHER];
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

static struct serve_sampled *sample_of(const struct place *p)
{
    return &p->u.t->sample.samples[p->u.number];
}

/* From p->logits. */
static void add_token(struct lane *lane, struct place *p)
{
    const struct serve_sample *x = &p->u.t->sample;
    const int64_t nvocab = lane->s->job.model.nvocab;
    const uint32_t number = (uint32_t)p->u.number;
    struct serve_sampled *one = sample_of(p);
    const double whole = log_sum(p->logits, nvocab);
    const size_t at = one->n, k = x->top_k;
    uint32_t id;
    p->ended = choose_token(lane->choose, &x->rule, p->logits, number, at, &id, &p->u.err) != 0;
    if (p->ended)
        return;
    one->ids[at] = (int32_t)id;
    one->logprobs[at] = (float)((double)p->logits[id] - whole);
    if (k)
        find_top(p->logits, nvocab, whole, (uint32_t)k, one->top_ids + at * k, one->top_logprobs + at * k);
    one->n++;
    one->stopped = choose_is_stop(&x->rule, id) || (x->ends && x->ends(x->ctx, number, one->ids, one->n));
    p->ended = one->stopped || one->n == x->rule.max_new_tokens;
}

static int begin_sample(struct lane *lane, struct place *p)
{
    struct serve_sample *x = &p->u.t->sample;
    struct compute *c;
    int rc = p->u.number == 0 ? read_prompt(lane, p->u.t, &p->u.err) : x->read->err.code;
    if (!rc)
        rc = adapter_compute(lane, p->u.t->adapter->held, &c, &p->u.err);
    if (!rc)
        rc = decode_new_paged(c, 1, lane->s->kv, &p->decode, &p->u.err);
    if (!rc)
        rc = decode_go_on(p->decode, &x->read->kv, &p->u.err);
    if (!rc)
        rc = make_room(x, sample_of(p), &p->u.err);
    return rc;
}

static void begin(struct group *group, const struct generate_unit *u)
{
    struct place *p = group->places;
    while (p->u.t)
        p++;
    *p = (struct place){ .u = *u, .logits = NULL };
    p->ended = begin_sample(group->lane, p) != 0;
    p->logits = u->t->sample.read->logits;
    if (!p->ended)
        add_token(group->lane, p);
}

static void list_live(struct group *group)
{
    group->n = 0;
    for (struct place *p = group->places; p < group->places + TOGETHER; p++) {
        if (!p->u.t || p->ended || p->u.err.code)
            continue;
        const struct serve_sampled *one = sample_of(p);
        group->decodes[group->n] = p->decode;
        group->ids[group->n] = one->ids[one->n - 1];
        group->live[group->n++] = p;
    }
}

/* The next token of each. */
static void advance(struct group *group)
{
    struct fsdpck_error err = { 0 };
    list_live(group);
    const int rc = group->n ? decode_tokens(group->decodes, group->n, group->ids, group->logits, &err) : 0;
    for (size_t k = 0; k < group->n; k++) {
        struct place *p = group->live[k];
        p->logits = group->logits[k];
        if (rc)
            p->u.err = err;
        else
            add_token(group->lane, p);
    }
}

/* Gives back the samples that have ended, and their pages first. Returns the number of the others. */
static size_t end(struct group *group)
{
    size_t left = 0;
    for (struct place *p = group->places; p < group->places + TOGETHER; p++) {
        if (!p->u.t)
            continue;
        if (!p->ended && !p->u.err.code) {
            left++;
            continue;
        }
        decode_free(p->decode);
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
    x->read = calloc(1, sizeof *x->read);
    t->nunits = x->nsamples;
    if (x->samples && x->read)
        return 0;
    free(x->read);
    x->read = NULL;
    return fsdpck_error_nomem(&t->err, x->nsamples * sizeof *x->samples);
}

void generate_drop(struct serve *s, struct serve_task *t)
{
    struct serve_read *read = t->sample.read;
    if (read) {
        kv_free(&read->kv);
        free(read->logits);
    }
    free(read);
    t->sample.read = NULL;
    if (t->nbegun)
        kv_pool_release(s->kv, generate_prompt_npages(&t->sample));
}

size_t generate_prompt_npages(const struct serve_sample *x)
{
    return kv_pages((int64_t)x->nprompt);
}

/* Its own pages: from the prompt's last one, if that is a part, on. The last token of a sample is not read. */
size_t generate_sample_npages(const struct serve_sample *x)
{
    const int64_t most = (int64_t)x->nprompt + (int64_t)x->rule.max_new_tokens - 1;
    return kv_pages(most) - x->nprompt / KV_PAGE;
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
