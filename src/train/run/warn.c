/* SPDX-License-Identifier: Apache-2.0 */
/* Notes on settings that have no effect, or an unusual one. They may be intended; as a mistake they cost a run. */
#include "run/warn.h"

#include <stdarg.h>
#include <stdio.h>

#include "rank/schedule.h"

static void __attribute__((format(printf, 2, 3))) note(const struct job *job, const char *fmt, ...)
{
    char line[600];
    va_list ap;
    if (!job->opt->note)
        return;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    job->opt->note(job->opt->ctx, line);
}

static void warn_about_learning_rate(const struct job *job)
{
    const struct train_config *c = job->config;
    uint64_t warmup = schedule_warmup(c, job->nsteps);
    if (c->train.learning_rate == 0)
        note(job, "train.learning_rate is 0: nothing is learnt");
    else if (warmup >= job->nsteps)
        note(job,
             "train.warmup_steps is %llu and the run has %llu step%s: the learning rate ends at %g and never reaches "
             "train.learning_rate, %g",
             (unsigned long long)warmup, (unsigned long long)job->nsteps, fsdpck_plural(job->nsteps),
             schedule_lr(c, job->nsteps - 1, job->nsteps), c->train.learning_rate);
}

/* Number of positions in config.json, or the number to which RoPE scaling extends them. */
static uint64_t npositions(const struct model *m)
{
    double scaled = m->rope.factor > 1 ? m->rope.factor * m->rope.original_max_position : 0;
    return scaled > (double)m->max_position ? (uint64_t)scaled : (uint64_t)m->max_position;
}

static void warn_about_positions(const struct job *job)
{
    struct train_data_facts facts;
    if (!job->model.family)
        return;
    uint64_t n = npositions(&job->model), seq_len = job->config->data.seq_len;
    data_describe(job->data, &facts);
    if (facts.longest_ntok > n)
        note(job,
             "the longest document has %llu tokens, and the model has %llu positions (max_position_embeddings): what "
             "lies behind them is nothing that it was trained for",
             (unsigned long long)facts.longest_ntok, (unsigned long long)n);
    else if (seq_len > n && !facts.by_plan)
        note(job,
             "data.seq_len is %llu, and the model has %llu positions (max_position_embeddings); no document is longer "
             "than that",
             (unsigned long long)seq_len, (unsigned long long)n);
}

static void warn_about_plan(const struct job *job)
{
    struct train_data_facts facts;
    data_describe(job->data, &facts);
    if (facts.by_plan && facts.nempty)
        note(job, "data.plan: %llu of %llu document%s %s no supervised token, and %s nothing",
             (unsigned long long)facts.nempty, (unsigned long long)facts.ndocs, fsdpck_plural(facts.ndocs),
             facts.nempty == 1 ? "has" : "have", facts.nempty == 1 ? "trains" : "train");
}

static void warn_about_date(const struct job *job)
{
    if (job->config->data.date && !job->date[0])
        note(job, "key 'data.date' has no effect: no chat template asks for the date");
}

static void warn_about_predictors(const struct job *job)
{
    const int64_t n = job->model.npredictors;
    if (n > 0 && !job->config->lora.enabled)
        note(job,
             "the model has %lld layer%s for multi-token prediction (num_nextn_predict_layers), which training, its "
             "checkpoints and the exported model leave out, as transformers does",
             (long long)n, fsdpck_plural((uint64_t)n));
}

void job_warn(const struct job *job)
{
    if (job->first != 0)
        return;
    warn_about_learning_rate(job);
    warn_about_positions(job);
    warn_about_plan(job);
    warn_about_date(job);
    warn_about_predictors(job);
}
