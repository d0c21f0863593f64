/* SPDX-License-Identifier: Apache-2.0 */
#include "run/automatic.h"

#include <stdio.h>
#include <string.h>

#include "run/open.h"
#include "run/recall.h"
#include "run/search.h"
#include "state/state.h"

static bool read_micro_batch(const struct fsdpck_source *src, void *nrows)
{
    return state_read_micro_batch(src, nrows);
}

void automatic_recall(struct train_config *config, const struct train_options *opt)
{
    if (config->automatic & TRAIN_AUTO_MICRO_BATCH &&
        recall(config, opt, read_micro_batch, &config->train.micro_batch_size))
        config->automatic &= ~(unsigned)TRAIN_AUTO_MICRO_BATCH;
}

static double gib(uint64_t nbytes)
{
    return (double)nbytes / 1073741824.0;
}

/* Nothing can run, or nothing fits: the candidate that comes nearest says why. */
static int refuse(const struct train_search *found, struct fsdpck_error *err)
{
    const struct train_candidate *least = NULL;
    for (size_t i = 0; i < found->ncandidates; i++) {
        const struct train_candidate *c = &found->candidates[i];
        if (c->valid && (!least || c->peak_nbytes < least->peak_nbytes))
            least = c;
    }
    if (!least)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "\"auto\" finds no settings: %s",
                                found->candidates[0].why);
    fsdpck_error_set(err, FSDPCK_ERR_NOMEM, NULL,
                     "\"auto\" finds no settings that fit: a rank needs %.2f GiB at least, and has %.2f",
                     gib(least->peak_nbytes), gib(found->limit_nbytes));
    fsdpck_error_hint(err, "more ranks, a smaller data.seq_len or train.micro_batch_size, or "
                           "fsdp.activation_checkpointing take less");
    return err->code;
}

static void note_choice(const struct job *job, unsigned chosen, const struct train_candidate *c)
{
    char line[400], word[TRAIN_WORD_NBYTES];
    int n = snprintf(line, sizeof line, "\"auto\" is");
#define ADD(bit, ...) n += chosen & (bit) ? snprintf(line + n, sizeof line - (size_t)n, __VA_ARGS__) : 0
    ADD(TRAIN_AUTO_STRATEGY, " fsdp.sharding_strategy %s,",
        train_config_word("fsdp.sharding_strategy", c->strategy, word));
    ADD(TRAIN_AUTO_FORWARD_PREFETCH, " fsdp.forward_prefetch %llu,", (unsigned long long)c->prefetch);
    ADD(TRAIN_AUTO_BACKWARD_PREFETCH, " fsdp.backward_prefetch %llu,", (unsigned long long)c->prefetch);
    ADD(TRAIN_AUTO_MICRO_BATCH, " train.micro_batch_size %llu,", (unsigned long long)c->micro_batch_size);
    ADD(TRAIN_AUTO_OFFLOAD, " fsdp.offload %s,", train_offload_word(c->offload));
#undef ADD
    snprintf(line + n, sizeof line - (size_t)n, " for a step of %.3g s (predicted)", c->step_seconds);
    if (job->fs.note)
        job->fs.note(job->fs.ctx, line);
}

/* Keys without effect were told before the choice, but for this one. */
static void note_no_copies(const struct job *job, const struct train_config *settled)
{
    const bool elastic = job->opt->elastic_nranks || job->opt->keeper;
    if (job->fs.note && elastic && settled->checkpoint.memory_every && settled->fsdp.offload)
        job->fs.note(job->fs.ctx,
                     "key 'checkpoint.memory_every' has no effect: \"auto\" moves the state to a file, and "
                     "a run goes on from a checkpoint");
}

/* Writes the choice to *settled, if there is one. room_nbytes: memory of a rank. */
static int choose(const struct job *job, uint64_t room_nbytes, struct train_config *settled, struct fsdpck_error *err)
{
    const unsigned keys = search_keys(job, job->config->automatic);
    struct train_search found = { .limit_nbytes = room_nbytes };
    struct rates rates;
    if (!keys)
        return 0;
    int rc = search_rates(job->opt, &rates, err);
    if (!rc)
        rc = search_job(job, keys, false, &rates, &found, err);
    if (!rc && found.chosen == found.ncandidates)
        rc = refuse(&found, err);
    if (rc)
        return rc;
    search_take(&found.candidates[found.chosen], keys, settled);
    note_choice(job, keys, &found.candidates[found.chosen]);
    if (keys & TRAIN_AUTO_OFFLOAD)
        note_no_copies(job, settled);
    return 0;
}

int automatic_choose(struct job *job, struct train_config *settled, struct fsdpck_error *err)
{
    const struct train_config *given = job->config;
    *settled = *given;
    settled->automatic = 0;
    if (!given->automatic)
        return 0;
    int rc = choose(job, search_limit(job), settled, err);
    return rc ? rc : job_set_config(job, settled, err);
}

static int find_least(struct comm *comm, uint64_t mine, uint64_t *least, struct fsdpck_error *err)
{
    uint64_t all[COMM_MAX_SUM] = { 0 };
    all[comm->rank] = mine;
    int rc = comm->ops->sum_u64(comm, all, comm->nranks, err);
    *least = mine;
    for (uint32_t r = 0; r < comm->nranks; r++)
        *least = all[r] < *least ? all[r] : *least;
    return rc;
}

int automatic_agree(struct comm *comm, struct job *job, struct train_config *settled, struct fsdpck_error *err)
{
    const struct train_config *given = job->config;
    uint64_t least;
    *settled = *given;
    settled->automatic = 0;
    if (!given->automatic)
        return 0;
    comm_at(comm, 0, "choice of the settings that are \"auto\"");
    int rc = find_least(comm, search_limit(job), &least, err);
    if (!rc && comm->rank == 0)
        rc = choose(job, least, settled, err);
    const unsigned offload = !settled->fsdp.offload            ? TRAIN_OFFLOAD_NONE
                             : settled->fsdp.offload_params    ? TRAIN_OFFLOAD_PARAMETERS
                             : settled->fsdp.offload_gradients ? TRAIN_OFFLOAD_GRADIENTS
                                                               : TRAIN_OFFLOAD_STATE;
    uint64_t words[] = { settled->fsdp.strategy, settled->fsdp.forward_prefetch, settled->fsdp.backward_prefetch,
                         settled->train.micro_batch_size, offload };
    if (comm->rank != 0)
        memset(words, 0, sizeof words);
    if (!rc)
        rc = comm->ops->sum_u64(comm, words, sizeof words / sizeof words[0], err);
    if (rc)
        return rc;
    settled->fsdp.strategy = (enum train_sharding)words[0];
    settled->fsdp.forward_prefetch = words[1];
    settled->fsdp.backward_prefetch = words[2];
    settled->train.micro_batch_size = words[3];
    if (given->automatic & TRAIN_AUTO_OFFLOAD)
        search_offload((enum train_offload)words[4], settled);
    return job_set_config(job, settled, err);
}
