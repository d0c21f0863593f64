/* SPDX-License-Identifier: Apache-2.0 */
/* Creates and releases the resources of a rank: its device, its device memory, its communicator. */
#include "rank/rank.h"

#include <stdlib.h>

#include "comm/comm_linked.h"
#include "comm/reducer.h"
#include "rank/gather.h"
#include "rank/memory.h"

static int make_slices(struct rank *r, struct fsdpck_error *err)
{
    const struct layout *l = &r->job->layout;
    r->slices = calloc(l->nparams, sizeof *r->slices);
    r->group_slices = calloc(l->ngroups + 1, sizeof *r->group_slices);
    r->ranges = calloc(l->nparams, sizeof *r->ranges);
    r->rows = calloc(l->nparams, sizeof *r->rows);
    if (!r->slices || !r->group_slices || !r->ranges || !r->rows)
        return fsdpck_error_nomem(err, l->nparams * sizeof *r->slices);
    for (size_t i = 0; i < l->nparams; i++) { /* parameters are in the order of their groups */
        const struct param *p = &l->params[i];
        if (!p->trainable)
            continue;
        r->group_slices[p->group + 1] = r->nslices + 1;
        r->slices[r->nslices++] = (struct comm_slice){
            .at = p->grad_at, .nelem = p->nrow * p->ncol, .chunk = p->chunk * p->ncol, .into = r->own + p->own_at
        };
    }
    for (uint32_t g = 0; g < l->ngroups; g++)
        r->group_slices[g + 1] =
            r->group_slices[g + 1] > r->group_slices[g] ? r->group_slices[g + 1] : r->group_slices[g];
    return 0;
}

void *rank_rows(const struct rank *r, const struct param *p)
{
    int64_t first;
    param_rows(p, r->comm->rank, &first);
    if (r->where->device->apart)
        return r->comm->values + p->shard_at;
    return r->comm->values + p->value_at + first * p->ncol * kern_dtype_bytes(p->dtype);
}

float *rank_master(const struct rank *r, const struct param *p)
{
    return r->masters && p->dtype != KERN_F32 ? r->masters + p->own_at : rank_rows(r, p);
}

int rank_publish(struct rank *r, bool all, struct fsdpck_error *err)
{
    const struct layout *l = &r->job->layout;
    for (size_t i = 0; i < l->nparams && r->masters; i++) {
        const struct param *p = &l->params[i];
        int64_t first, nrow = param_rows(p, r->comm->rank, &first);
        struct kern_mat to = { rank_rows(r, p), p->ncol, p->dtype };
        struct kern_cmat from = { rank_master(r, p), p->ncol, KERN_F32 };
        if (p->trainable && nrow > 0 && p->dtype != KERN_F32)
            r->compute->device->ops->cast(r->compute->stream, to, from, nrow, p->ncol);
    }
    return rank_spread(r, all, err);
}

int rank_spread(struct rank *r, bool all, struct fsdpck_error *err)
{
    return r->gather ? gather_publish(r->gather, all, err) : 0;
}

int rank_download(const struct rank *r, void *host, const void *device, size_t nbytes, struct fsdpck_error *err)
{
    r->compute->device->memory->copy(r->compute->stream, host, device, nbytes);
    return compute_sync(r->compute, err);
}

int rank_upload(const struct rank *r, void *device, const void *host, size_t nbytes, struct fsdpck_error *err)
{
    r->compute->device->memory->copy(r->compute->stream, device, host, nbytes);
    return compute_sync(r->compute, err);
}

static int open_device(struct rank *r, struct fsdpck_error *err)
{
    const struct train_options *opt = r->job->opt;
    const bool launched = opt->launched_nlocal > 0;
    r->where = calloc(1, sizeof *r->where);
    r->memory = calloc(1, sizeof *r->memory);
    if (!r->where || !r->memory)
        return fsdpck_error_nomem(err, sizeof *r->memory);
    return device_open(r->job, launched ? opt->launched_local : r->host->rank, r->where, err);
}

static int open_compute(struct rank *r, struct fsdpck_error *err)
{
    const struct job *job = r->job;
    const struct compute_device where = { r->where->device, r->where->index, job->nthreads };
    int64_t ntok;
    size_t ndocs;
    job_largest(job, &ntok, &ndocs);
    return compute_new(&job->model, &job->layout, job->config, ntok, ndocs, &where, &r->compute, err);
}

/* Devices are linked if each rank has its own, or by links that do not need that. All ranks choose alike. */
static int choose_links(struct rank *r, struct fsdpck_error *err)
{
    const struct kern_links *links = r->where->module ? r->where->module->links : NULL;
    uint64_t without = !links || (r->where->nsharing > 1 && !links->shares);
    int rc = r->where->device->apart && r->host->nranks > 1 ? r->host->ops->sum_u64(r->host, &without, 1, err) : 0;
    if (!rc && r->host->nranks > 1 && without == 0)
        r->where->links = links;
    return rc;
}

/* Allocates device memory, and pinned memory for copies back. */
static int take_memory(struct rank *r, struct fsdpck_error *err)
{
    const struct kern_device *device = r->where->device;
    const struct kern_location pinned = { .kind = KERN_MEMORY_PINNED, .index = r->where->index };
    const bool linked = device_is_linked(r->where, r->host->nranks);
    struct memory_sizes sizes;
    char message[KERN_MESSAGE_BYTES];
    int rc = memory_choose(r->job, r->where, linked, r->compute, err);
    if (!rc)
        rc = memory_count(r->job, device->apart, linked, r->compute, &sizes, err);
    if (!rc)
        rc = memory_take(r->job, r->where, &sizes, r->memory, err);
    if (!rc &&
        device->memory->alloc(pinned, memory_row_sums_nbytes(&r->job->layout), &r->row_sums_back, message) != KERN_OK)
        rc = fsdpck_error_set(err, FSDPCK_ERR_NOMEM, NULL, "no memory for sums of rows: %s", message);
    r->own = r->memory->own;
    r->m = r->memory->m;
    r->v = r->memory->v;
    r->masters = r->memory->masters;
    r->row_sums = r->memory->row_sums;
    return rc;
}

/* For data in device memory: uses links if devices are linked or there is one rank; otherwise goes through the host. */
static int open_comm(struct rank *r, struct fsdpck_error *err)
{
    const struct layout *l = &r->job->layout;
    struct gather_sizes sizes = { 0 };
    r->comm = r->host;
    if (!r->where->device->apart)
        return 0;
    int rc = gather_count(r->job, &sizes, err);
    const struct comm_on_device on = { .device = r->where->device,
                                       .index = r->where->index,
                                       .compute = r->compute->stream,
                                       .values = r->memory->values,
                                       .contribution = r->memory->contribution,
                                       .grad_nelem = l->grad_nelem,
                                       .own = r->own,
                                       .own_nelem = l->own_nelem,
                                       .largest_group_nbytes = sizes.largest_nbytes };
    if (!rc && device_is_linked(r->where, r->host->nranks))
        return comm_linked_new(r->host, &on, r->where->links, r->memory->received, !job_copies(r->job), &r->comm, err);
    return rc ? rc : comm_staged_new(r->host, &on, &r->comm, err);
}

int rank_open_bare(const struct job *job, struct comm *host, struct rank **out, struct fsdpck_error *err)
{
    struct rank *r = calloc(1, sizeof *r);
    *out = NULL;
    if (!r)
        return fsdpck_error_nomem(err, sizeof *r);
    r->job = job;
    r->comm = r->host = host;
    int rc = open_device(r, err);
    if (!rc)
        rc = compute_new_bare(&job->model, &job->layout, job->config,
                              &(struct compute_device){ r->where->device, r->where->index, job->nthreads }, &r->compute,
                              err);
    if (rc) {
        rank_close(r);
        return rc;
    }
    compute_set_values(r->compute, host->values);
    *out = r;
    return 0;
}

static int open_reducer(struct rank *r, struct fsdpck_error *err)
{
    const struct reducer_device on = { r->where->device, r->where->index, r->compute->stream };
    return reducer_new(r->comm->lanes[COMM_REDUCE], &on, &r->reducer, err);
}

int rank_open(const struct job *job, struct comm *host, struct rank **out, struct fsdpck_error *err)
{
    struct rank *r = calloc(1, sizeof *r);
    *out = NULL;
    if (!r)
        return fsdpck_error_nomem(err, sizeof *r);
    r->job = job;
    r->host = host;
    int rc = open_device(r, err);
    if (!rc)
        rc = open_compute(r, err);
    if (!rc)
        rc = device_count_sharing(r->where, host, err);
    if (!rc)
        rc = choose_links(r, err);
    if (!rc)
        rc = take_memory(r, err);
    if (!rc)
        rc = open_comm(r, err);
    if (!rc)
        rc = make_slices(r, err);
    if (!rc)
        rc = compute_bind(r->compute, r->memory->activations, r->comm->values, r->comm->contribution, err);
    if (!rc)
        rc = gather_new(job, r->comm, r->compute, r->memory->ring, &r->gather, err);
    if (!rc && host->nranks > 1 && job->layout.grads_by_group &&
        (!r->where->device->apart || device_is_linked(r->where, host->nranks)))
        rc = open_reducer(r, err);
    if (rc)
        rank_close(r);
    else
        *out = r;
    return rc;
}

struct rank_times rank_times(const struct rank *r)
{
    struct ring_times gathers = gather_times(r->gather);
    struct reducer_times exchanges = r->reducer ? reducer_times(r->reducer) : (struct reducer_times){ 0 };
    uint64_t waited = gathers.waited_ns + exchanges.waited_ns;
    return (struct rank_times){ .exposed_ns = comm_wait_ns(r->comm) + waited,
                                .behind_ns = gathers.gathered_ns + exchanges.busy_ns,
                                .waited_ns = waited };
}

void rank_tell(const struct rank *r, enum train_phase phase, uint64_t done, uint64_t total)
{
    const struct train_options *opt = r->job->opt;
    if (r->comm->rank == 0 && opt->phase)
        opt->phase(opt->ctx, phase, done, total);
}

void rank_fail(const struct job *job, struct job_status *job_status, struct fsdpck_error *err)
{
    memory_hint(job, err);
    job_status_fail(job_status, err);
}

void rank_close(struct rank *r)
{
    if (!r)
        return;
    reducer_free(r->reducer);
    gather_free(r->gather);
    if (r->comm && r->comm != r->host)
        r->comm->ops->free(r->comm);
    compute_free(r->compute);
    if (r->where && r->where->device) {
        r->where->device->memory->free(&r->memory->buffer);
        r->where->device->memory->free(&r->row_sums_back);
    }
    free(r->ranges);
    free(r->rows);
    free(r->slices);
    free(r->group_slices);
    free(r->where);
    free(r->memory);
    free((void *)r->base.tensors);
    free(r->base_names);
    free(r);
}
