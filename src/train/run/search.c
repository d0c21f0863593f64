/* SPDX-License-Identifier: Apache-2.0 */
/* Plans every candidate, and says of each why it was passed over. */
#include "run/search.h"

#include <stdio.h>
#include <string.h>

#include "price/rates_cache.h"
#include "rank/memory.h"
#include "run/open.h"
#include "run/plan.h"

/* The order that decides between equals: the first needs the least communication. */
static const enum train_sharding strategies[] = { TRAIN_NO_SHARD, TRAIN_HYBRID_SHARD_ZERO2, TRAIN_SHARD_GRAD_OP,
                                                  TRAIN_HYBRID_SHARD, TRAIN_FULL_SHARD };
static const enum train_recompute recomputations[] = { TRAIN_RECOMPUTE_NONE, TRAIN_RECOMPUTE_AUTO,
                                                       TRAIN_RECOMPUTE_BLOCK };
static const uint64_t prefetches[] = { 1, 2 };
enum { NSTRATEGIES = 5, NRECOMPUTATIONS = 3, NPREFETCHES = 2, NMICROS = 8, NGATHERING = 2 };
enum { PREFETCH = TRAIN_AUTO_FORWARD_PREFETCH | TRAIN_AUTO_BACKWARD_PREFETCH };
_Static_assert((NSTRATEGIES + NGATHERING * (NPREFETCHES - 1)) * NRECOMPUTATIONS * NMICROS *
                       (TRAIN_OFFLOAD_PARAMETERS + 1) <=
                   TRAIN_CANDIDATES,
               "all candidates have a place");

/* Predictions that are nearer to each other are equal. */
static const double tie = 1.05;

/* Settings that gather once do not gather ahead. */
static bool gathers_again(enum train_sharding strategy)
{
    return strategy == TRAIN_FULL_SHARD || strategy == TRAIN_HYBRID_SHARD;
}

static bool is_hybrid(enum train_sharding strategy)
{
    return strategy == TRAIN_HYBRID_SHARD || strategy == TRAIN_HYBRID_SHARD_ZERO2;
}

/* In what candidates differ. */
struct variety {
    unsigned keys;             /* enum train_automatic */
    bool recompute, automatic; /* automatic: fsdp.activation_checkpointing "auto" is a candidate too */
    enum train_offload offload;
};

static void list_prefetches(const struct variety *v, struct train_candidate c, struct train_search *out)
{
    const bool varies = v->keys & PREFETCH && gathers_again(c.strategy);
    for (size_t p = 0; p < (varies ? NPREFETCHES : 1); p++) {
        c.prefetch = v->keys & PREFETCH ? prefetches[p] : c.prefetch;
        out->candidates[out->ncandidates++] = c;
    }
}

static void list_micros(const struct variety *v, uint64_t most, struct train_candidate c, struct train_search *out)
{
    const bool varies = v->keys & TRAIN_AUTO_MICRO_BATCH;
    for (unsigned m = 0; m < (varies ? NMICROS : 1) && (!varies || UINT64_C(1) << m <= most); m++) {
        c.micro_batch_size = varies ? UINT64_C(1) << m : c.micro_batch_size;
        list_prefetches(v, c, out);
    }
}

static void list(const struct train_config *config, const struct variety *v, struct train_search *out)
{
    const bool varies = v->keys & TRAIN_AUTO_STRATEGY;
    for (size_t s = 0; s < (varies ? NSTRATEGIES : 1); s++)
        for (size_t r = 0; r < (v->recompute ? NRECOMPUTATIONS : 1); r++) {
            const struct train_candidate c = { .strategy = varies ? strategies[s] : config->fsdp.strategy,
                                               .checkpointing =
                                                   v->recompute ? recomputations[r] : config->fsdp.checkpointing,
                                               .offload = v->offload,
                                               .prefetch = config->fsdp.forward_prefetch,
                                               .micro_batch_size = config->train.micro_batch_size };
            if (!v->recompute || c.checkpointing != TRAIN_RECOMPUTE_AUTO || v->automatic)
                list_micros(v, config->train.global_batch_size, c, out);
        }
}

const char *train_offload_word(enum train_offload offload)
{
    static const char *const words[] = { "none", "state", "gradients", "parameters" };
    return words[offload];
}

void search_offload(enum train_offload offload, struct train_config *config)
{
    config->fsdp.offload = offload ? config->fsdp.offload_here : NULL;
    config->fsdp.offload_gradients |= offload >= TRAIN_OFFLOAD_GRADIENTS;
    config->fsdp.offload_params |= offload >= TRAIN_OFFLOAD_PARAMETERS;
}

void search_take(const struct train_candidate *c, unsigned keys, struct train_config *config)
{
    config->fsdp.strategy = keys & TRAIN_AUTO_STRATEGY ? c->strategy : config->fsdp.strategy;
    config->fsdp.forward_prefetch = keys & TRAIN_AUTO_FORWARD_PREFETCH ? c->prefetch : config->fsdp.forward_prefetch;
    config->fsdp.backward_prefetch = keys & TRAIN_AUTO_BACKWARD_PREFETCH ? c->prefetch : config->fsdp.backward_prefetch;
    config->train.micro_batch_size =
        keys & TRAIN_AUTO_MICRO_BATCH ? c->micro_batch_size : config->train.micro_batch_size;
    if (keys & TRAIN_AUTO_OFFLOAD)
        search_offload(c->offload, config);
}

/* A copy of the job tries the configs of the candidates. It shares the data with the job. */
struct trial {
    const struct train_config *config;
    struct train_options opt; /* of the copy */
    struct job job;           /* the copy */
    const struct rates *rates;
    unsigned keys;
};

/* An error is the candidate's; only a lack of memory ends the search. */
static int plan_candidate(struct trial *t, struct train_candidate *c, uint32_t *nreplicas, struct fsdpck_error *err)
{
    struct train_config changed = *t->config;
    struct fsdpck_error why = { 0 };
    struct train_plan plan;
    changed.automatic = 0;
    changed.fsdp.checkpointing = c->checkpointing;
    search_take(c, t->keys, &changed);
    int rc = job_set_config(&t->job, &changed, &why);
    if (!rc)
        rc = plan_make(&t->job, t->rates, &plan, &why);
    t->job.config = t->config;
    if (rc && why.code != FSDPCK_ERR_USAGE) {
        *err = why;
        return rc;
    }
    c->valid = !rc;
    if (rc) {
        snprintf(c->why, sizeof c->why, "%s", why.message);
        return 0;
    }
    *nreplicas = plan.nreplicas;
    c->peak_nbytes = plan.peak_nbytes;
    c->nrecomputed = plan.nrecomputed;
    c->step_seconds = plan.step_seconds;
    c->exposed_seconds = plan.exposed_seconds;
    return 0;
}

/* "auto" may recompute nothing, or all. */
static bool is_kept(const struct train_candidate *kept, size_t nkept, const struct train_candidate *c)
{
    for (size_t i = 0; i < nkept; i++) {
        const struct train_candidate *k = &kept[i];
        if (k->valid && k->strategy == c->strategy && k->prefetch == c->prefetch && k->nrecomputed == c->nrecomputed &&
            k->micro_batch_size == c->micro_batch_size && k->offload == c->offload)
            return true;
    }
    return false;
}

/* Plans those from the first one on, and drops those that are equal to another. */
static int plan_all(struct trial *t, size_t first, struct train_search *out, struct fsdpck_error *err)
{
    size_t kept = first;
    int rc = 0;
    for (size_t i = first; i < out->ncandidates && !rc; i++) {
        struct train_candidate c = out->candidates[i];
        uint32_t nreplicas = 0;
        rc = plan_candidate(t, &c, &nreplicas, err);
        c.fits = c.valid && (!out->limit_nbytes || c.peak_nbytes <= out->limit_nbytes);
        /* with one shard group, a hybrid is the strategy that it is named after */
        const bool again = c.valid && ((is_hybrid(c.strategy) && nreplicas < 2) || is_kept(out->candidates, kept, &c));
        if (!rc && !again)
            out->candidates[kept++] = c;
    }
    out->ncandidates = kept;
    return rc;
}

static bool some_fit(const struct train_search *out)
{
    bool fit = false;
    for (size_t i = 0; i < out->ncandidates; i++)
        fit |= out->candidates[i].fits;
    return fit;
}

static void choose(struct train_search *out)
{
    double best = 0;
    for (size_t i = 0; i < out->ncandidates; i++) {
        const struct train_candidate *c = &out->candidates[i];
        if (c->fits && (best <= 0 || c->step_seconds < best))
            best = c->step_seconds;
    }
    for (out->chosen = 0; out->chosen < out->ncandidates; out->chosen++) {
        const struct train_candidate *c = &out->candidates[out->chosen];
        if (c->fits && c->step_seconds <= tie * best)
            return;
    }
}

static void explain(struct train_search *out)
{
    const double chosen = out->chosen < out->ncandidates ? out->candidates[out->chosen].step_seconds : 0;
    for (size_t i = 0; i < out->ncandidates; i++) {
        struct train_candidate *c = &out->candidates[i];
        if (!c->valid)
            continue;
        if (i == out->chosen)
            snprintf(c->why, sizeof c->why, "chosen");
        else if (!c->fits)
            snprintf(c->why, sizeof c->why, "needs %.2f GiB more than a rank has",
                     (double)(c->peak_nbytes - out->limit_nbytes) / 1073741824.0);
        else if (c->step_seconds > tie * chosen)
            snprintf(c->why, sizeof c->why, "%.0f %% slower", 100 * (c->step_seconds / chosen - 1));
        else
            snprintf(c->why, sizeof c->why, "not faster by 5 %%");
    }
}

unsigned search_keys(const struct job *job, unsigned keys)
{
    if (job->nranks < 2 || !job_copies(job))
        keys &= TRAIN_AUTO_MICRO_BATCH | TRAIN_AUTO_OFFLOAD;
    const bool fixed = job->config->data.plan || job->config->pipeline; /* a picture is a micro-batch */
    return fixed ? keys & ~(unsigned)TRAIN_AUTO_MICRO_BATCH : keys;
}

uint64_t search_limit(const struct job *job)
{
    return job->opt->module && !job->opt->rank_nbytes ? 0 : memory_host_room(job);
}

/* Of what leaves memory. */
static enum train_offload most_offload(const struct job *job, unsigned keys)
{
    if (!(keys & TRAIN_AUTO_OFFLOAD))
        return TRAIN_OFFLOAD_NONE;
    return job_has_device_memory(job) ? TRAIN_OFFLOAD_STATE : TRAIN_OFFLOAD_PARAMETERS; /* see offload_check() */
}

int search_job(const struct job *job, unsigned keys, bool recompute, const struct rates *rates,
               struct train_search *out, struct fsdpck_error *err)
{
    struct trial t = { .config = job->config, .opt = *job->opt, .job = *job, .rates = rates, .keys = keys };
    t.opt.rank_nbytes = out->limit_nbytes;
    t.job.opt = &t.opt;
    out->keys = keys;
    struct variety v = { keys, recompute, !job->opt->rank_nbytes, TRAIN_OFFLOAD_NONE };
    const enum train_offload most = most_offload(job, keys);
    int rc = 0;
    for (; v.offload <= most && !rc && !some_fit(out); v.offload++) {
        const size_t first = out->ncandidates;
        list(job->config, &v, out);
        rc = plan_all(&t, first, out, err);
    }
    if (rc)
        return rc;
    choose(out);
    explain(out);
    return 0;
}

int search_rates(const struct train_options *opt, struct rates *out, struct fsdpck_error *err)
{
    bool known;
    if (opt->module && !opt->rates) {
        fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                         "the search needs the rates of the device; those of processors say nothing of it");
        fsdpck_error_hint(err, "fsdptrain plan --search --rates FILE takes them from a file");
        return err->code;
    }
    int rc = rates_get(opt, out, &known, err);
    return rc || known ? rc : rates_measure(NULL, out, err);
}
