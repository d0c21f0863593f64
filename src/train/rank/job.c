/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of a job: derived values, and its release. */
#include "rank/job.h"

#include <string.h>

#include "model/expert_exchange.h"

void job_free(struct job *job)
{
    data_close(job->data);
    data_close(job->eval);
    layout_free(&job->layout);
    model_free(&job->model);
    packed_free(&job->packed);
    *job = (struct job){ 0 };
}

bool job_has_device_memory(const struct job *job)
{
    return job->opt->device && strcmp(job->opt->device, "cpu") != 0;
}

static void widen(const struct data *data, int64_t *ntok, size_t *ndocs)
{
    int64_t data_ntok;
    size_t data_ndocs;
    data_largest(data, &data_ntok, &data_ndocs);
    *ntok = data_ntok > *ntok ? data_ntok : *ntok;
    *ndocs = data_ndocs > *ndocs ? data_ndocs : *ndocs;
}

void job_largest(const struct job *job, int64_t *ntok, size_t *ndocs)
{
    const struct job *const one[] = { job }, *const *all = job->ntenants ? (const void *)job->tenants : one;
    *ntok = job->micro_ntok;
    *ndocs = job->micro_ntok > 0;
    for (size_t i = 0; i < (job->ntenants ? job->ntenants : 1); i++) {
        if (all[i]->data)
            widen(all[i]->data, ntok, ndocs);
        if (all[i]->eval)
            widen(all[i]->eval, ntok, ndocs);
    }
}

bool job_copies_on_host(const struct job *job)
{
    return job->opt->copy_gathers || job->opt->several_hosts || job_offloads_params(job);
}

int64_t job_largest_ntok(const struct job *job)
{
    int64_t ntok;
    size_t ndocs;
    job_largest(job, &ntok, &ndocs);
    return ntok;
}

bool job_copies(const struct job *job)
{
    return job_copies_on_host(job) || (job_has_device_memory(job) && job->nranks > 1);
}

uint32_t job_nsharing(const struct job *job)
{
    const bool apart = job_offloads_params(job) && !job->opt->launched_nranks && !job->opt->several_hosts;
    if (job_has_device_memory(job) || job->opt->copy_gathers || apart || !job->nlocal)
        return 1;
    return job->nlocal < job->nranks ? job->nlocal : job->nranks;
}

bool job_hosts_hold_all(const struct job *job)
{
    return job->opt->several_hosts && !job_offloads_params(job) && job_nsharing(job) >= job_most_shards(job);
}

bool job_gathers(const struct job *job, bool separate_memory)
{
    const bool copies = job_copies_on_host(job) || (separate_memory && job->nranks > 1);
    const bool alone = job->nranks == 1 && job->config->fsdp.strategy != TRAIN_NO_SHARD; /* gathers from itself */
    if (separate_memory && job_rests_on_host(job))
        return true;
    return copies && (alone || job_most_shards(job) > 1 || job_offloads_params(job));
}

bool job_has_replicas(const struct job *job, bool linked)
{
    if (job_offloads_params(job) && !job->opt->several_hosts) /* they read the same file */
        return false;
    return linked || job_copies_on_host(job) ||
           (job_has_device_memory(job) && !job_rests_on_host(job) && job_most_shards(job) == 1);
}

uint32_t job_most_shards(const struct job *job)
{
    uint32_t most = 1;
    for (size_t i = 0; i < job->layout.nparams; i++)
        most = job->layout.params[i].nshards > most ? job->layout.params[i].nshards : most;
    return most;
}

uint32_t job_gathers_from(const struct job *job, bool linked, const struct param *p)
{
    return linked || job_copies_on_host(job) ? p->nshards : job->nranks;
}

bool job_has_whole(const struct job *job, bool linked, const struct param *p)
{
    return job->nranks > 1 && p->nshards == 1 && !job_offloads_params(job) && !job_rests_on_host(job) &&
           (linked || !job_has_device_memory(job));
}

/* Devices that are not linked gather from the host, and hold the rows that they own, unless they hold everything. */
size_t job_place_on_device(const struct job *job, bool linked, size_t *at)
{
    const struct layout *l = &job->layout;
    const bool whole = job_most_shards(job) == 1;
    size_t nbytes = 0;
    for (size_t i = 0; i < l->nparams; i++) {
        const struct param *p = &l->params[i];
        if (at)
            at[i] = nbytes;
        nbytes += whole || job_has_whole(job, linked, p)
                      ? param_value_nbytes(l, p)
                      : param_shard_nbytes(p) * (linked ? job->nranks / p->nshards : 1);
    }
    return nbytes;
}

bool job_keeps(const struct job *job, bool linked)
{
    return job->mesh.nkept && (linked || job_copies_on_host(job));
}

bool job_offloads(const struct job *job)
{
    return job->offload.ntrees > 0;
}

bool job_offloads_params(const struct job *job)
{
    return offload_folder(job->config) && job->config->fsdp.offload_params;
}

bool job_rests_on_host(const struct job *job)
{
    return job_has_device_memory(job) && job->config->fsdp.offload && job->config->fsdp.offload_params &&
           !offload_folder(job->config);
}

bool job_keeps_snapshots(const struct job *job)
{
    return (job->opt->elastic_nranks || job->opt->keeper) && job->config->checkpoint.memory_every && !job_offloads(job);
}

uint64_t job_rest_nbytes(const struct job *job)
{
    const uint32_t nsharing = job_nsharing(job);
    if (job_offloads_params(job))
        return 0;
    if (!job_copies_on_host(job))
        return job->layout.value_nbytes / job->nranks;
    uint64_t shared = 0, cut = 0; /* divided once, so that no parameter is rounded down */
    for (size_t i = 0; i < job->layout.nparams; i++) {
        const struct param *p = &job->layout.params[i];
        if (nsharing > p->nshards)
            shared += param_value_nbytes(&job->layout, p);
        else
            cut += param_value_nbytes(&job->layout, p) * (job->nranks / p->nshards);
    }
    return shared / nsharing + cut / job->nranks;
}

uint64_t job_reduce_nbytes(const struct job *job)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < job->layout.nparams; i++) {
        const struct param *p = &job->layout.params[i];
        sum += p->trainable ? (uint64_t)(p->nrow * p->ncol * kern_dtype_bytes(p->reduce)) : 0;
    }
    return sum;
}

size_t job_reduce_widest(const struct job *job)
{
    size_t most = sizeof(uint16_t);
    for (size_t i = 0; i < job->layout.nparams; i++)
        if (job->layout.params[i].trainable && job->layout.params[i].reduce == KERN_F32)
            most = sizeof(float);
    return most;
}

bool job_rounds(const struct job *job)
{
    return job_reduce_nbytes(job) < (uint64_t)job->layout.ntrained * sizeof(float);
}

uint32_t job_ranks_of_copy(const struct job *job)
{
    uint32_t divisor = job->nranks;
    for (size_t i = 0; i < job->layout.nparams; i++)
        divisor = mesh_common(divisor, job->layout.params[i].nshards);
    return divisor;
}

uint64_t job_trade_nbytes(const struct job *job)
{
    const int64_t nowners = (int64_t)job->config->fsdp.expert_parallel;
    uint64_t most = 0;
    for (size_t i = 0; i < job->ntenants; i++) {
        const uint64_t nbytes = job_trade_nbytes(job->tenants[i]);
        most = nbytes > most ? nbytes : most;
    }
    return nowners < 2 || job->ntenants ? most
                                        : exchange_nbytes(&job->model, &job->layout, nowners, job_largest_ntok(job));
}

struct comm_sizes job_comm_sizes(const struct job *job)
{
    return (struct comm_sizes){ .value_nbytes = job->layout.value_nbytes,
                                .grad_nelem = job->layout.grad_nelem,
                                .copies = job_copies_on_host(job),
                                .apart = job->opt->copy_gathers,
                                .whole = !job_gathers(job, false),
                                .ranks_of_copy = job_ranks_of_copy(job),
                                .most_within = job_most_shards(job),
                                .kept_within = job->mesh.nkept,
                                .trade_nbytes = job_trade_nbytes(job),
                                .folder = job_offloads_params(job) ? offload_folder(job->config) : NULL,
                                .npieces = (uint32_t)job->layout.nparams,
                                .io = job->fs.io,
                                .reduce = job->config->dtype.reduce == TRAIN_BF16 ? FSDPCK_BFLOAT16 : FSDPCK_FLOAT32 };
}
