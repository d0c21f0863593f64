/* SPDX-License-Identifier: Apache-2.0 */
/* Refuses runs that cannot have expert groups, and gives each rank its group. */
#include "rank/owners.h"

#include <stdlib.h>

#include "model/expert_exchange.h"
#include "rank/memory.h"

struct owners {
    struct expert_owners of;
    float *grads[]; /* (of.n) */
};

#define KEY "key 'fsdp.expert_parallel'"

static int refuse(const char *why, struct fsdpck_error *err)
{
    return fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, NULL, KEY ": %s", why);
}

/* A copy of the parameters must hold all experts: of a host, or of the ranks of a supervisor that share one. */
static bool is_spread(const struct job *job)
{
    uint32_t within = job->opt->several_hosts ? 0 : job_ranks_of_copy(job);
    for (size_t i = 0; i < job->layout.nparams && job_copies_on_host(job); i++) {
        const struct param *p = &job->layout.params[i];
        within = within || !p->owned ? within : p->nshards;
        if (p->owned && p->nshards != within)
            return true;
    }
    return false;
}

/* The ranks of a group share the memory of a host. */
static int check_host(const struct job *job, struct fsdpck_error *err)
{
    const struct train_options *opt = job->opt;
    const uint64_t n = job->config->fsdp.expert_parallel;
    const bool launched = opt->launched_nranks > 0;
    if (!launched && !opt->several_hosts)
        return 0;
    if (!job->nlocal)
        return refuse("the launcher does not say how many ranks a host has", err);
    if (job->nlocal % n)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, KEY ": %llu does not divide the %u rank%s of this host",
                                (unsigned long long)n, job->nlocal, fsdpck_plural(job->nlocal));
    if (job->nranks % job->nlocal)
        return refuse("hosts have different numbers of ranks", err);
    if (launched && opt->launched_rank % job->nlocal != opt->launched_local)
        return refuse("the ranks of a host are not consecutive (mpirun --map-by core and srun -m block number them so)",
                      err);
    if (opt->copy_gathers)
        return refuse("with --gather copy, ranks that a launcher starts share no memory", err);
    return 0;
}

static int check_numbers(const struct job *job, struct fsdpck_error *err)
{
    const uint64_t n = job->config->fsdp.expert_parallel;
    if (job->nranks % n) {
        fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, KEY ": %llu does not divide the %u rank%s of this run",
                         (unsigned long long)n, job->nranks, fsdpck_plural(job->nranks));
        fsdpck_error_hint(err, "choose a divisor of %u, or another number of ranks", job->nranks);
        return err->code;
    }
    if (job->model.nexperts % (int64_t)n)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, KEY ": %llu does not divide the %lld experts of a block",
                                (unsigned long long)n, (long long)job->model.nexperts);
    return 0;
}

int owners_check(const struct job *job, struct fsdpck_error *err)
{
    const struct train_options *opt = job->opt;
    if (job->config->fsdp.expert_parallel < 2)
        return 0;
    if (!job->model.nexperts)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, KEY ": the model has no experts");
    int rc = check_numbers(job, err);
    if (!rc)
        rc = check_host(job, err);
    if (rc)
        return rc;
    if (job_has_device_memory(job))
        return refuse("experts are whole on ranks of the CPU only (--device cpu)", err);
    if (opt->keeper)
        return refuse("a run of several hosts with whole experts ends if ranks are lost, and has no --elastic", err);
    if (job_offloads_params(job))
        return refuse("experts in the file of fsdp.offload_params are not whole on ranks", err);
    if (is_spread(job))
        return refuse("with it, the shard groups of fsdp.policy have as many ranks as those of fsdp", err);
    return 0;
}

uint64_t owners_expert_nbytes(const struct job *job)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < job->layout.nparams; i++) {
        const struct param *p = &job->layout.params[i];
        sum += p->owned ? (uint64_t)(p->nrow * param_row_nbytes(p)) : 0;
    }
    return sum / job->config->fsdp.expert_parallel;
}

/* Blocks that memory_choose() has let a computation recompute. */
static uint64_t nchosen(const struct compute *c)
{
    uint64_t n = 0;
    for (int64_t i = 0; i < c->m->nlayer; i++)
        n += c->blocks[i].checkpointing == TRAIN_RECOMPUTE_AUTO && c->blocks[i].recomputed;
    return n;
}

int owners_agree(const struct job *job, struct comm *comm, struct compute *c, struct compute *const *all, size_t n,
                 struct fsdpck_error *err)
{
    uint64_t chosen[COMM_MAX_SUM] = { 0 }, mine = 0, most = 0;
    for (size_t i = 0; i < n; i++)
        mine = nchosen(all[i]) > mine ? nchosen(all[i]) : mine;
    chosen[comm->rank] = mine;
    int rc = job->config->fsdp.expert_parallel > 1 ? comm->ops->sum_u64(comm, chosen, comm->nranks, err) : 0;
    for (uint32_t r = 0; r < comm->nranks; r++)
        most = chosen[r] > most ? chosen[r] : most;
    if (!rc && most > mine)
        memory_recompute(c, all, n, (int64_t)most);
    return rc;
}

static int trade(void *ctx, const struct comm_trade *t, struct fsdpck_error *err)
{
    struct comm *comm = ctx;
    return comm->ops->trade(comm, t, err);
}

int owners_new(const struct job *job, struct comm *comm, struct compute *c, struct owners **out,
               struct fsdpck_error *err)
{
    const uint32_t n = (uint32_t)job->config->fsdp.expert_parallel, number = comm->rank % n;
    struct owners *o = n > 1 ? calloc(1, sizeof *o + n * sizeof *o->grads) : NULL;
    *out = o;
    if (n < 2)
        return 0;
    if (!o)
        return fsdpck_error_nomem(err, sizeof *o + n * sizeof *o->grads);
    o->of = (struct expert_owners){
        .n = n, .number = number, .first = comm->rank - number, .grads = o->grads, .trade = trade, .ctx = comm
    };
    owners_shift(o, comm, 0);
    c->owners = &o->of;
    return 0;
}

void owners_shift(struct owners *o, const struct comm *comm, uint32_t shift)
{
    const uint32_t place = o->of.first - comm->near_first;
    for (uint32_t i = 0; i < o->of.n; i++)
        o->grads[i] = comm->near_contributions + (place + i + comm->nnear - shift) % comm->nnear * comm->near_nelem;
}

void owners_free(struct owners *o)
{
    free(o);
}
