/* SPDX-License-Identifier: Apache-2.0 */
/* Notes on settings that have no effect, or an unusual one. They may be intended; as a mistake they cost a run. */
#include "run/look.h"

#include <stdarg.h>
#include <stdio.h>

#include "rank/schedule.h"

static void __attribute__((format(printf, 2, 3))) tell(const struct job *job, const char *fmt, ...)
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

static void look_at_rate(const struct job *job)
{
    const struct train_config *c = job->config;
    uint64_t warmup = schedule_warmup(c, job->nsteps);
    if (c->train.learning_rate == 0)
        tell(job, "train.learning_rate is 0: nothing is learnt");
    else if (warmup >= job->nsteps)
        tell(job,
             "train.warmup_steps is %llu and the run has %llu steps: the learning rate ends at %g and never reaches "
             "train.learning_rate, %g",
             (unsigned long long)warmup, (unsigned long long)job->nsteps, schedule_lr(c, job->nsteps - 1, job->nsteps),
             c->train.learning_rate);
}

/* Number of positions in config.json, or the number to which RoPE scaling extends them. */
static uint64_t npositions(const struct model *m)
{
    double scaled = m->rope.factor > 1 ? m->rope.factor * m->rope.original_max_position : 0;
    return scaled > (double)m->max_position ? (uint64_t)scaled : (uint64_t)m->max_position;
}

static void look_at_positions(const struct job *job)
{
    struct train_data_facts facts;
    uint64_t n = npositions(&job->model), seq_len = job->config->data.seq_len;
    data_tell(job->data, &facts);
    if (facts.longest_ntok > n)
        tell(job,
             "the longest document has %llu tokens, and the model has %llu positions (max_position_embeddings): what "
             "lies behind them is nothing that it was trained for",
             (unsigned long long)facts.longest_ntok, (unsigned long long)n);
    else if (seq_len > n && !facts.by_plan)
        tell(job,
             "data.seq_len is %llu, and the model has %llu positions (max_position_embeddings); no document is longer "
             "than that",
             (unsigned long long)seq_len, (unsigned long long)n);
}

static void look_at_plan(const struct job *job)
{
    struct train_data_facts facts;
    data_tell(job->data, &facts);
    if (facts.by_plan && facts.nempty)
        tell(job, "data.plan: %llu of %llu documents have no supervised token, and train nothing",
             (unsigned long long)facts.nempty, (unsigned long long)facts.ndocs);
}

static void look_at_date(const struct job *job)
{
    if (job->config->data.date && !job->date[0])
        tell(job, "key 'data.date' has no effect: no chat template asks for the date");
}

void job_look(const struct job *job)
{
    if (job->first != 0)
        return;
    look_at_rate(job);
    look_at_positions(job);
    look_at_plan(job);
    look_at_date(job);
}
