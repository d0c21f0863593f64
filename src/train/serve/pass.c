/* SPDX-License-Identifier: Apache-2.0 */
/* Forward and backward passes, and the update. A pass is cut into packets of whole sequences, in their order, by itself
 * alone. Packets are computed by any rank; their gradients are added in the order of the packets. So an adapter's bits
 * depend neither on the number of ranks nor on the other adapters. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "run/optimize.h"
#include "serve/losses.h"
#include "serve/serve_impl.h"

/* Data [first, end) of a pass. */
struct packet_data {
    size_t first, end;
    int64_t ntok;
};

static const struct packet_data *packet_of(const struct serve_task *t, size_t unit)
{
    return (const struct packet_data *)t->packets + unit;
}

int64_t pass_ntok(const struct serve_task *t, size_t unit)
{
    return packet_of(t, unit)->ntok;
}

int pass_plan(const struct serve *s, struct serve_task *t)
{
    const struct serve_pass *x = &t->pass;
    struct packet_data *packets = calloc(x->ndata, sizeof *packets), *p = packets;
    if (!packets)
        return fsdpck_error_nomem(&t->err, x->ndata * sizeof *packets);
    for (size_t i = 0; i < x->ndata; i++) {
        if (p->ntok && p->ntok + x->data[i].n > (int64_t)s->seq_len)
            *++p = (struct packet_data){ .first = i };
        p->ntok += x->data[i].n;
        p->end = i + 1;
    }
    t->packets = packets;
    t->nunits = (size_t)(p - packets) + 1;
    return 0;
}

void pass_drop(struct serve_task *t)
{
    free((void *)t->packets);
    t->packets = NULL;
}

static int check_ids(const struct serve *s, const int32_t *ids, int64_t n, size_t number, const char *what,
                     struct fsdpck_error *err)
{
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= s->job.model.nvocab)
            return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "datum %zu: %s %lld is %d; the model has %lld tokens",
                                    number, what, (long long)i, ids[i], (long long)s->job.model.nvocab);
    return 0;
}

static int check_length(const struct serve *s, int64_t n, const char *what, size_t number, struct fsdpck_error *err)
{
    if (n >= 1 && n <= (int64_t)s->seq_len)
        return 0;
    return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "%s %zu has %lld tokens; this server takes 1 to %llu", what,
                            number, (long long)n, (unsigned long long)s->seq_len);
}

static int check_pass(const struct serve *s, const struct serve_pass *x, struct fsdpck_error *err)
{
    int rc = x->ndata ? 0 : fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "a pass without data");
    if (!rc && x->loss == SERVE_DRO && !(x->beta >= 0))
        rc = fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "loss 'dro' needs loss_fn_config['beta']");
    for (size_t i = 0; i < x->ndata && !rc; i++) {
        rc = check_length(s, x->data[i].n, "datum", i, err);
        if (!rc)
            rc = losses_check(x, i, err);
        if (!rc)
            rc = check_ids(s, x->data[i].tokens, x->data[i].n, i, "token", err);
        if (!rc)
            rc = check_ids(s, x->data[i].targets, x->data[i].n, i, "target", err);
    }
    return rc;
}

static int check_pages(const struct serve *s, const struct serve_sample *x, struct fsdpck_error *err)
{
    const size_t npages = generate_prompt_npages(x) + generate_sample_npages(x), all = kv_pool_npages(s->kv);
    const double page = (double)kv_pool_page_nbytes(s->kv) / 1048576.0;
    if (npages <= all)
        return 0;
    return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                            "the keys and values of a prompt of %zu tokens and %llu more may take %.1f MiB; this "
                            "server has %.1f MiB for them (--kv-cache)",
                            x->nprompt, (unsigned long long)x->rule.max_new_tokens, (double)npages * page,
                            (double)all * page);
}

static int check_sample(const struct serve *s, const struct serve_sample *x, struct fsdpck_error *err)
{
    const int64_t context = s->job.model.max_position;
    int rc = x->nprompt ? 0 : fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "the prompt has no token to go on from");
    if (!rc)
        rc = check_ids(s, x->prompt, (int64_t)x->nprompt, 0, "token", err);
    if (!rc && x->prompt_logprobs)
        rc = check_length(s, (int64_t)x->nprompt, "prompt", 0, err);
    if (!rc && context && (int64_t)(x->nprompt + x->rule.max_new_tokens) > context)
        rc = fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                              "a prompt of %zu tokens and %llu more; the model's context has %lld", x->nprompt,
                              (unsigned long long)x->rule.max_new_tokens, (long long)context);
    if (!rc)
        rc = sample_rule_check(&x->rule, err);
    return rc ? rc : check_pages(s, x, err);
}

int serve_check(const struct serve *s, const struct serve_task *t, struct fsdpck_error *err)
{
    return t->kind == SERVE_PASS     ? check_pass(s, &t->pass, err)
           : t->kind == SERVE_SAMPLE ? check_sample(s, &t->sample, err)
                                     : 0;
}

/* ---- A packet */

static void fill(struct batch *b, const struct serve_pass *x, const struct packet_data *p)
{
    *b->rng_offset = (struct kern_rng_offset){ 0 };
    b->grad_scale = 1;
    b->share = 0; /* no load balancing loss */
    b->ntok = 0;
    b->ndocs = (int64_t)(p->end - p->first);
    b->cu_seqlens[0] = 0;
    for (size_t i = p->first; i < p->end; i++) {
        const struct serve_datum *d = &x->data[i];
        memcpy(b->ids + b->ntok, d->tokens, (size_t)d->n * sizeof *b->ids);
        memcpy(b->targets + b->ntok, d->targets, (size_t)d->n * sizeof *b->targets);
        for (int64_t k = 0; k < d->n; k++)
            b->positions[b->ntok + k] = (int32_t)k;
        if (!losses_need_logprobs(x))
            losses_weigh(x, d, b->weights + b->ntok);
        b->ntok += d->n;
        b->cu_seqlens[i - p->first + 1] = b->ntok;
    }
}

static void take_logprobs(const struct serve_pass *x, const struct packet_data *p, const struct batch *b)
{
    const float *losses = b->losses;
    for (size_t i = p->first; i < p->end; i++)
        for (int64_t k = 0; k < x->data[i].n; k++)
            x->data[i].target_logprobs[k] = -*losses++;
}

struct weighing {
    const struct serve_pass *pass;
    const struct packet_data *packet;
};

static void weigh(void *ctx, struct batch *b)
{
    const struct weighing *w = ctx;
    int64_t at = 0;
    take_logprobs(w->pass, w->packet, b);
    for (size_t i = w->packet->first; i < w->packet->end; i++) {
        losses_weigh(w->pass, &w->pass->data[i], b->weights + at);
        at += w->pass->data[i].n;
    }
}

/* The lane's gradients, zeroed. */
static int clean_grads(struct lane *lane, const struct layout *l, struct fsdpck_error *err)
{
    if (lane->grads_capacity < l->grad_nelem) {
        free(lane->grads);
        lane->grads_capacity = 0;
        lane->grads = aligned_alloc(64, (size_t)(l->grad_nelem + 15) / 16 * 64);
        if (!lane->grads)
            return fsdpck_error_nomem(err, (size_t)l->grad_nelem * sizeof *lane->grads);
        lane->grads_capacity = l->grad_nelem;
    }
    memset(lane->grads, 0, (size_t)l->grad_nelem * sizeof *lane->grads);
    return 0;
}

static void fold(struct lane *lane, struct held *h)
{
    const struct layout *l = &h->job.layout;
    for (size_t i = 0; i < l->nparams; i++) {
        const struct param *p = &l->params[i];
        if (p->trainable)
            comm_fold(h->beside.comm, rank_sums(h->beside.rank, p), lane->grads + p->grad_at, p->nrow * p->ncol,
                      !h->has_grads);
    }
    h->has_grads = true;
}

static int compute(struct lane *lane, struct serve_task *t, const struct packet_data *packet, struct fsdpck_error *err)
{
    struct held *h = t->adapter->held;
    struct weighing w = { &t->pass, packet };
    struct compute *c;
    double unused;
    int rc = adapter_compute(lane, h, &c, err);
    if (!rc && t->pass.backward)
        rc = clean_grads(lane, &h->job.layout, err);
    if (rc)
        return rc;
    fill(&c->batch, &t->pass, packet);
    c->grads = lane->grads;
    c->weighing = (struct compute_weighing){ .on = true,
                                             .weigh = t->pass.backward && losses_need_logprobs(&t->pass) ? weigh : NULL,
                                             .by_token = losses_are_by_token(&t->pass),
                                             .ctx = &w };
    rc = t->pass.backward ? compute_micro(c, NULL, &unused, err) : compute_loss(c, NULL, &unused, err);
    if (!rc)
        take_logprobs(&t->pass, packet, &c->batch);
    return rc;
}

/* A packet that fails takes its turn too: the others wait for it. */
int pass_run(struct lane *lane, struct serve_task *t, size_t unit, uint64_t ticket, struct fsdpck_error *err)
{
    int rc = compute(lane, t, packet_of(t, unit), err);
    if (!t->pass.backward)
        return rc;
    queue_await_turn(t->adapter, ticket);
    if (!rc)
        fold(lane, t->adapter->held);
    queue_pass_turn(t->adapter);
    return rc;
}

/* ---- The update */

static void clear_grads(struct held *h)
{
    memset(h->beside.rank->own, 0, (size_t)h->job.layout.own_nelem * sizeof *h->beside.rank->own);
}

/* Without gradients since the last update, they are zero: the moments decay. Gradients that are not finite are dropped,
 * and change nothing. */
int optimize_run(struct lane *lane, struct serve_task *t)
{
    struct held *h = t->adapter->held;
    struct rank *r = h->beside.rank;
    struct step_facts facts = { 0 };
    struct requests none = { 0 };
    const char *name;
    if (!h->has_grads)
        clear_grads(h);
    h->has_grads = false;
    h->config.train.learning_rate = t->adamw.learning_rate;
    h->config.train.beta1 = t->adamw.beta1;
    h->config.train.beta2 = t->adamw.beta2;
    h->config.train.epsilon = t->adamw.eps;
    h->config.train.weight_decay = t->adamw.weight_decay;
    h->config.train.max_grad_norm = t->adamw.max_grad_norm;
    rank_beside_use(&h->beside, lane->compute);
    int rc = rank_norm(r, &t->adamw.norm, &none, &facts, &t->err);
    if (rc)
        return rc;
    if (!isfinite(t->adamw.norm)) {
        rc = rank_find_nonfinite(r, &name, &t->err);
        return rc ? rc
                  : fsdpck_error_set(&t->err, FSDPCK_ERR_FORMAT, NULL,
                                     "gradients are not finite, those of '%s' first: they are dropped, and the adapter "
                                     "is as before",
                                     name);
    }
    rc = rank_update(r, t->adamw.norm, t->adamw.learning_rate, &t->err);
    if (!rc)
        rc = compute_sync(lane->compute, &t->err);
    r->step = r->updates;
    return rc;
}
