/* SPDX-License-Identifier: Apache-2.0 */
/* Creates and releases the resources of a rank: its device, its device memory, its communicator. */
#include "rank/rank.h"

#include <stdio.h>
#include <stdlib.h>

#include "comm/comm_linked.h"
#include "comm/reducer.h"
#include "rank/gather.h"
#include "rank/grad_file.h"
#include "rank/host_rest.h"
#include "rank/memory.h"
#include "rank/offload.h"
#include "rank/offload_device.h"
#include "rank/owners.h"

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
        r->slices[r->nslices++] =
            (struct comm_slice){ .at = p->grad_at,
                                 .nelem = p->nrow * p->ncol,
                                 .chunk = p->chunk * p->ncol,
                                 .into = rank_sums(r, p),
                                 .reduce = p->reduce == KERN_BF16 ? FSDPCK_BFLOAT16 : FSDPCK_FLOAT32 };
    }
    for (uint32_t g = 0; g < l->ngroups; g++)
        r->group_slices[g + 1] =
            r->group_slices[g + 1] > r->group_slices[g] ? r->group_slices[g + 1] : r->group_slices[g];
    return 0;
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

/* ---- Several adapters on one base: what the rank has once for each */

/* The rank's own computation only has the stream, and the addresses of groups. */
static int tenants_open_computes(struct rank *r, const struct compute_device *where, struct fsdpck_error *err)
{
    const struct job *job = r->job;
    r->tenants = calloc(job->ntenants, sizeof *r->tenants);
    int rc = r->tenants ? compute_new_bare(&job->model, &job->layout, job->config, where, &r->compute, err)
                        : fsdpck_error_nomem(err, job->ntenants * sizeof *r->tenants);
    for (size_t i = 0; i < job->ntenants && !rc; i++) {
        const struct job *one = job->tenants[i];
        int64_t ntok;
        size_t ndocs;
        job_largest(one, &ntok, &ndocs);
        rc = compute_new_beside(r->compute, &one->model, &one->layout, one->config, ntok, ndocs, &r->tenants[i].compute,
                                err);
    }
    return rc;
}

/* Tenants sample one after another. */
static uint64_t tenants_samples(const struct rank *r)
{
    uint64_t most = 0;
    for (size_t i = 0; i < r->job->ntenants; i++) {
        const uint64_t nbytes = memory_samples(r->job->tenants[i], r->tenants[i].compute).device_nbytes;
        most = nbytes > most ? nbytes : most;
    }
    return memory_aligned(most);
}

/* Where a device has a tenant's parameters: where it has those of the whole, which are in the order of their places. */
static int find_at_rest(const struct rank *r, struct rank *t, struct fsdpck_error *err)
{
    const struct layout *all = &r->job->layout, *l = &t->job->layout;
    if (!r->rest_at)
        return 0;
    t->rest_at = calloc(l->nparams, sizeof *t->rest_at);
    if (!t->rest_at)
        return fsdpck_error_nomem(err, l->nparams * sizeof *t->rest_at);
    for (size_t i = 0; i < l->nparams; i++) {
        size_t low = 0, end = all->nparams;
        while (end - low > 1) {
            const size_t middle = low + (end - low) / 2;
            *(all->params[middle].value_at <= l->params[i].value_at ? &low : &end) = middle;
        }
        t->rest_at[i] = r->rest_at[low];
    }
    return 0;
}

/* Makes a tenant's view from the rank, which is complete. */
static int view(struct rank *r, size_t i, char *memory, struct fsdpck_error *err)
{
    struct rank *t = &r->tenants[i];
    struct compute *c = t->compute;
    *t = *r;
    t->job = r->job->tenants[i];
    t->compute = c;
    t->tenants = NULL;
    t->rest_at = NULL;
    t->slices = NULL;
    t->group_slices = NULL;
    t->nslices = 0;
    t->ranges = NULL;
    t->rows = NULL;
    int rc = compute_bind(c, memory, r->comm->values, r->comm->contribution, err);
    if (!rc)
        rc = owners_new(t->job, r->comm, c, &t->owners, err);
    if (!rc)
        rc = find_at_rest(r, t, err);
    return rc ? rc : make_slices(t, err);
}

static int tenants_bind(struct rank *r, struct fsdpck_error *err)
{
    char *memory = r->memory->activations;
    int rc = 0;
    compute_set_values(r->compute, r->comm->values);
    for (size_t i = 0; i < r->job->ntenants && !rc; i++) {
        rc = view(r, i, memory, err);
        memory += memory_aligned(r->tenants[i].compute->nbytes);
    }
    return rc;
}

static void tenants_close(struct rank *r)
{
    for (size_t i = 0; r->tenants && i < r->job->ntenants; i++) {
        struct rank *t = &r->tenants[i];
        compute_free(t->compute);
        owners_free(t->owners);
        free(t->rest_at);
        free(t->slices);
        free(t->group_slices);
        free(t->ranges);
        free(t->rows);
        free((void *)t->base.tensors);
        free(t->base_names);
    }
    free(r->tenants);
    r->tenants = NULL;
}

/* ---- The parts of a rank */

static int open_compute(struct rank *r, struct fsdpck_error *err)
{
    const struct job *job = r->job;
    const struct compute_device where = { r->where->device, r->where->index, job->nthreads };
    int64_t ntok;
    size_t ndocs;
    if (job->ntenants)
        return tenants_open_computes(r, &where, err);
    job_largest(job, &ntok, &ndocs);
    return compute_new(&job->model, &job->layout, job->config, ntok, ndocs, &where, &r->compute, err);
}

/* Devices are linked if each rank has its own, or by links that do not need that. All ranks choose alike. */
static int choose_links(struct rank *r, struct fsdpck_error *err)
{
    const struct kern_links *links = r->where->module ? r->where->module->links : NULL;
    uint64_t without = !links || (r->where->nsharing > 1 && !links->shares);
    int rc =
        r->where->device->separate_memory && r->host->nranks > 1 ? r->host->ops->sum_u64(r->host, &without, 1, err) : 0;
    if (!rc && r->host->nranks > 1 && without == 0)
        r->where->links = links;
    return rc;
}

/* Memory for gathered groups: none if all parameters are mapped, and one for the ranks of a host if they can share it.
 */
static int share_ring(struct rank *r, struct memory_sizes *sizes, char **out, struct fsdpck_error *err)
{
    struct comm *host = r->host;
    *out = NULL;
    if (r->where->device->separate_memory)
        return 0;
    if (!host->views && host->ops->share_buffer && sizes->ring_nbytes) {
        int rc = host->ops->share_buffer(host, sizes->ring_nbytes, out, err);
        if (rc)
            return rc;
    }
    if (host->views || *out)
        sizes->ring_nbytes = 0;
    return 0;
}

/* How many blocks are recomputed: of the rank's computation, or of those of all tenants. */
static int choose_recomputed(struct rank *r, struct fsdpck_error *err)
{
    const struct job *job = r->job;
    const size_t n = r->tenants ? job->ntenants : 1;
    struct compute **all = calloc(n, sizeof *all);
    if (!all)
        return fsdpck_error_nomem(err, n * sizeof *all);
    for (size_t i = 0; i < n; i++)
        all[i] = r->tenants ? r->tenants[i].compute : r->compute;
    int rc = memory_choose(job, r->where, device_is_linked(r->where, r->host->nranks), r->compute, all, n, err);
    if (!rc)
        rc = owners_agree(job, r->host, r->compute, all, n, err);
    free(all);
    return rc;
}

/* Allocates device memory, and pinned memory for copies back. */
static int take_memory(struct rank *r, struct fsdpck_error *err)
{
    const struct kern_device *device = r->where->device;
    const struct kern_location pinned = { .kind = KERN_MEMORY_PINNED, .index = r->where->index };
    const bool linked = device_is_linked(r->where, r->host->nranks);
    struct memory_sizes sizes;
    char message[KERN_MESSAGE_BYTES], *ring = NULL;
    int rc = choose_recomputed(r, err);
    if (!rc)
        rc = memory_count(r->job, device->separate_memory, linked, r->compute, &sizes, err);
    if (!rc && r->tenants && device->separate_memory)
        sizes.sample_nbytes = tenants_samples(r);
    const uint64_t ring_nbytes = rc ? 0 : sizes.ring_nbytes;
    if (!rc)
        rc = share_ring(r, &sizes, &ring, err);
    if (!rc)
        rc = memory_alloc(r->job, r->where, &sizes, r->memory, err);
    if (ring) {
        r->memory->ring = ring;
        r->memory->sizes.ring_nbytes = ring_nbytes / job_nsharing(r->job);
    }
    if (!rc &&
        device->memory->alloc(pinned, memory_row_sums_nbytes(&r->job->layout), &r->row_sums_back, message) != KERN_OK)
        rc = fsdpck_error_set(err, FSDPCK_ERR_NOMEM, NULL, "no memory for sums of rows: %s", message);
    r->own = r->job->offload.gradients ? NULL : r->memory->own;
    r->m = r->memory->m;
    r->v = r->memory->v;
    r->masters = r->memory->masters;
    r->row_sums = r->memory->row_sums;
    r->window = r->memory->window;
    r->window_nbytes = r->memory->sizes.window_nbytes;
    return rc;
}

/* Pinned buffers for the state of a rank on a device. */
static int pin_buffers(struct rank *r, struct fsdpck_error *err)
{
    const struct kern_location pinned = { .kind = KERN_MEMORY_PINNED, .index = r->where->index };
    const uint64_t nbytes = r->job->offload.memory_nbytes;
    char message[KERN_MESSAGE_BYTES];
    if (r->where->device->memory->alloc(pinned, nbytes, &r->offload_pinned, message) == KERN_OK)
        return 0;
    fsdpck_error_set(err, FSDPCK_ERR_NOMEM, NULL, "no pinned memory for %.2f GiB of fsdp.offload_memory: %s",
                     (double)nbytes / 1073741824.0, message);
    fsdpck_error_hint(err, "a smaller fsdp.offload_memory takes less");
    return err->code;
}

static int open_state(struct rank *r, const char *folder, struct fsdpck_error *err)
{
    const struct job *job = r->job;
    const bool apart = r->where->device->separate_memory;
    int rc = apart ? pin_buffers(r, err) : 0;
    if (!rc)
        rc = offload_new(&job->layout, &job->offload, r->host->rank, folder, job->fs.io,
                         apart ? r->offload_pinned.data : r->memory->offload, &r->offload, err);
    if (!rc && apart)
        rc = offload_device_new(r->where->device, r->where->index, &job->offload, r->offload, r->compute->stream,
                                r->memory->offload, &r->offload_device, err);
    return rc;
}

static int open_grads(struct rank *r, const char *folder, struct fsdpck_error *err)
{
    const struct grad_file_memory where = { .memory = r->memory->own,
                                            .device = r->where->device->separate_memory ? r->where->device : NULL,
                                            .index = r->where->index,
                                            .stream = r->compute->stream };
    return grad_file_new(&r->job->layout, r->host->rank, folder, r->job->fs.io, &where, &r->grads, err);
}

static int open_offload(struct rank *r, struct fsdpck_error *err)
{
    const struct job *job = r->job;
    const char *folder = offload_folder(job->config);
    char line[600];
    const bool linked = device_is_linked(r->where, r->host->nranks);
    int rc = host_rest_check(job, linked, memory_host_room(job), err);
    if (!rc)
        rc = host_rest_pin(r->where->device, r->where->index, host_rest_pinned_nbytes(job, linked), &r->rest, err);
    if (!rc && job_offloads(job))
        rc = open_state(r, folder, err);
    if (!rc && job->offload.gradients)
        rc = open_grads(r, folder, err);
    if (rc || !folder || !r->offload || offload_is_direct(r->offload) || !job->fs.note || r->host->rank != 0)
        return rc;
    snprintf(line, sizeof line,
             "the file system of '%.400s' does not support O_DIRECT: what is there also takes page cache", folder);
    job->fs.note(job->fs.ctx, line);
    return 0;
}

/* For data in device memory: uses links if devices are linked or there is one rank; otherwise goes through the host. */
static int open_comm(struct rank *r, struct fsdpck_error *err)
{
    const struct layout *l = &r->job->layout;
    struct gather_sizes sizes = { 0 };
    r->comm = r->host;
    if (!r->where->device->separate_memory)
        return 0;
    const bool linked = r->linked = device_is_linked(r->where, r->host->nranks);
    r->rest_at = calloc(l->nparams, sizeof *r->rest_at);
    int rc = r->rest_at ? gather_count(r->job, true, linked, &sizes, err)
                        : fsdpck_error_nomem(err, l->nparams * sizeof *r->rest_at);
    if (rc)
        return rc;
    job_place_on_device(r->job, linked, r->rest_at);
    const struct comm_on_device on = { .device = r->where->device,
                                       .index = r->where->index,
                                       .compute = r->compute->stream,
                                       .views = !job_gathers(r->job, true),
                                       .kept_within = r->job->mesh.nkept,
                                       .values = r->window ? r->rest.data : r->memory->values,
                                       .on_host = r->window != NULL,
                                       .passage = (char *)r->window,
                                       .passage_nbytes = r->window_nbytes,
                                       .kept = r->memory->kept,
                                       .kept_from = sizes.kept_from,
                                       .contribution = r->memory->contribution,
                                       .grad_nelem = l->grad_nelem,
                                       .own = r->memory->own,
                                       .own_changes = r->grads != NULL,
                                       .own_nelem = l->own_nelem,
                                       .largest_group_nbytes = sizes.largest_nbytes,
                                       .element_nbytes = job_reduce_widest(r->job),
                                       .rounds = job_rounds(r->job) };
    return linked ? comm_linked_new(r->host, &on, r->where->links, r->memory->received, &r->comm, err)
                  : comm_staged_new(r->host, &on, &r->comm, err);
}

/* The parameters of a rank that is alone, in the device's memory. */
static int place_values(struct rank *r, struct fsdpck_error *err)
{
    const struct kern_location where = { .kind = KERN_MEMORY_DEVICE, .index = r->where->index };
    const size_t nbytes = job_place_on_device(r->job, true, NULL);
    char message[KERN_MESSAGE_BYTES];
    if (r->where->device->memory->alloc(where, nbytes, &r->memory->buffer, message) != KERN_OK)
        return fsdpck_error_set(err, FSDPCK_ERR_NOMEM, NULL, "no memory for parameters of %.2f GiB: %s",
                                (double)nbytes / 1073741824.0, message);
    r->memory->values = r->memory->buffer.data;
    int rc = open_comm(r, err);
    if (rc)
        return rc;
    compute_set_values(r->compute, r->comm->values);
    return gather_new(r->job, r->linked, r->comm, r->compute, NULL, &r->gather, err);
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
    if (!rc && r->where->device->separate_memory)
        rc = place_values(r, err);
    else if (!rc)
        compute_set_values(r->compute, host->values);
    if (rc)
        rank_close(r);
    else
        *out = r;
    return rc;
}

static int open_reducer(struct rank *r, struct fsdpck_error *err)
{
    const struct reducer_device on = { r->where->device, r->where->index, r->compute->stream };
    char message[KERN_MESSAGE_BYTES];
    if (r->grads && !r->where->device->separate_memory &&
        r->where->device->stream_new(r->where->index, NULL, &r->sums_stream, message) != KERN_OK)
        return fsdpck_error_set(err, FSDPCK_ERR_NOMEM, NULL, "a stream for sums of gradients: %s", message);
    return reducer_new(r->comm->lanes[COMM_REDUCE], &on, r->job->layout.ngroups, &r->reducer, err);
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
        rc = open_offload(r, err);
    if (!rc)
        rc = open_comm(r, err);
    if (!rc)
        rc = make_slices(r, err);
    if (!rc && !r->tenants)
        rc = compute_bind(r->compute, r->memory->activations, r->comm->values, r->comm->contribution, err);
    if (!rc && !r->tenants)
        rc = owners_new(job, r->comm, r->compute, &r->owners, err);
    if (!rc)
        rc = gather_new(job, r->linked, r->comm, r->compute, r->memory->ring, &r->gather, err);
    if (!rc && r->tenants)
        rc = tenants_bind(r, err);
    if (!rc && host->nranks > 1 && job->layout.grads_by_group && job->layout.ntrained &&
        (!r->where->device->separate_memory || device_is_linked(r->where, host->nranks)))
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
                                .background_ns = gathers.gathered_ns + exchanges.busy_ns,
                                .waited_ns = waited,
                                .gather_ns = gathers.waited_ns,
                                .exchange_ns = exchanges.waited_ns + r->exchanged_ns };
}

void rank_group_times(const struct rank *r, uint32_t first, uint32_t last, uint64_t *gather_ns, uint64_t *exchange_ns)
{
    *gather_ns = gather_waited_ns(r->gather, first);
    *exchange_ns = 0;
    for (uint32_t g = first; g <= last && r->reducer; g++)
        *exchange_ns += reducer_waited_ns(r->reducer, g);
}

void rank_report_progress(const struct rank *r, enum train_phase phase, uint64_t done, uint64_t total)
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
    tenants_close(r);
    reducer_free(r->reducer);
    gather_free(r->gather);
    owners_free(r->owners);
    offload_device_free(r->offload_device);
    offload_free(r->offload);
    grad_file_free(r->grads);
    if (r->comm && r->comm != r->host)
        r->comm->ops->free(r->comm);
    compute_free(r->compute);
    if (r->where && r->where->device) {
        r->where->device->stream_free(r->sums_stream);
        r->where->device->memory->free(&r->memory->buffer);
        r->where->device->memory->free(&r->row_sums_back);
        r->where->device->memory->free(&r->offload_pinned);
        r->where->device->memory->free(&r->rest);
    }
    free(r->rest_at);
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
