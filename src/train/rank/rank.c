/* SPDX-License-Identifier: Apache-2.0 */
/* Creates and releases the resources of a rank: its device, its device memory, its communicator. */
#include "rank/rank.h"

#include <stdio.h>
#include <stdlib.h>

#include "comm/comm_linked.h"
#include "comm/reducer.h"
#include "rank/gather.h"
#include "rank/grad_file.h"
#include "rank/memory.h"
#include "rank/offload.h"
#include "rank/offload_device.h"

float *rank_sums(const struct rank *r, const struct param *p)
{
    return r->grads ? grad_file_sums(r->grads, p) : r->own + p->own_at;
}

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

void *rank_rows(const struct rank *r, const struct param *p)
{
    int64_t first;
    param_rows(p, r->comm->rank, &first);
    const size_t within = (size_t)(first * param_row_nbytes(p));
    if (!r->rest_at)
        return r->comm->values + p->value_at + within;
    unsigned char *chunks = r->comm->values + r->rest_at[p - r->job->layout.params];
    if (r->comm->views || job_has_whole(r->job, r->linked, p))
        return chunks + within;
    return chunks + (r->linked ? r->comm->rank / p->nshards * param_shard_nbytes(p) : 0);
}

static bool has_master(const struct rank *r, const struct param *p)
{
    return r->job->layout.masters && p->dtype != KERN_F32;
}

float *rank_master(const struct rank *r, const struct param *p)
{
    if (!has_master(r, p))
        return rank_rows(r, p);
    return r->masters ? r->masters + p->own_at : NULL;
}

static bool is_in_file(const struct rank *r, const struct param *p, int tree)
{
    return r->offload && (tree > 0 || has_master(r, p));
}

int rank_next_part(const struct rank *r, const struct param *p, int tree, struct rank_part *part,
                   struct fsdpck_error *err)
{
    int64_t first, nelem, nrow = param_rows(p, r->comm->rank, &first);
    const int64_t row = part->row + part->nrow;
    *part = (struct rank_part){ .row = row, .in_file = is_in_file(r, p, tree) };
    if (row >= nrow)
        return 0;
    part->nrow = nrow - row;
    if (!part->in_file) {
        part->data = tree == 0 ? rank_master(r, p) : (tree == 1 ? r->m : r->v) + p->own_at;
        return 0;
    }
    const int64_t at = p->own_at + row * p->ncol;
    int rc = r->offload_device ? offload_device_open(r->offload_device, tree, at, &part->data, &nelem, err)
                               : offload_open(r->offload, tree, at, &part->data, &nelem, err);
    part->nrow = nelem / p->ncol < part->nrow ? nelem / p->ncol : part->nrow;
    return rc;
}

bool rank_part_moves(const struct rank *r, const struct param *p, int tree, const struct rank_part *part)
{
    return is_in_file(r, p, tree) && !offload_is_open(r->offload, tree, p->own_at + (part->row + part->nrow) * p->ncol);
}

/* Rounds the masters of one parameter. */
static int round_values(struct rank *r, const struct param *p, struct fsdpck_error *err)
{
    char *rows = rank_rows(r, p);
    struct rank_part part = { 0 };
    int rc = 0;
    while (!(rc = rank_next_part(r, p, 0, &part, err)) && part.nrow > 0) {
        struct kern_mat to = { rows + part.row * p->ncol * kern_dtype_bytes(p->dtype), p->ncol, p->dtype };
        r->compute->device->ops->cast(r->compute->stream, to, (struct kern_cmat){ part.data, p->ncol, KERN_F32 },
                                      part.nrow, p->ncol);
    }
    return rc;
}

int rank_publish(struct rank *r, bool all, struct fsdpck_error *err)
{
    const struct layout *l = &r->job->layout;
    int rc = 0;
    for (size_t i = 0; i < l->nparams && !rc; i++)
        if (l->params[i].trainable && has_master(r, &l->params[i]))
            rc = round_values(r, &l->params[i], err);
    if (!rc && r->offload)
        rc = r->offload_device ? offload_device_close(r->offload_device, err) : offload_close(r->offload, err);
    return rc ? rc : rank_publish_rounded(r, all, err);
}

int rank_publish_rounded(struct rank *r, bool all, struct fsdpck_error *err)
{
    return r->gather ? gather_publish(r->gather, all, err) : 0;
}

void rank_note(const struct rank *r, const char *line)
{
    if (r->comm->rank == 0 && r->job->opt->note)
        r->job->opt->note(r->job->opt->ctx, line);
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

/* Allocates device memory, and pinned memory for copies back. */
static int take_memory(struct rank *r, struct fsdpck_error *err)
{
    const struct kern_device *device = r->where->device;
    const struct kern_location pinned = { .kind = KERN_MEMORY_PINNED, .index = r->where->index };
    const bool linked = device_is_linked(r->where, r->host->nranks);
    struct memory_sizes sizes;
    char message[KERN_MESSAGE_BYTES], *ring = NULL;
    int rc = memory_choose(r->job, r->where, linked, r->compute, err);
    if (!rc)
        rc = memory_count(r->job, device->separate_memory, linked, r->compute, &sizes, err);
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
    return rc;
}

/* The state of a rank on a device goes to host memory as it is written: nothing reserves it. */
static int check_host_room(const struct job *job, struct fsdpck_error *err)
{
    const struct offload_sizes *sizes = &job->offload;
    const uint64_t need = sizes->memory_nbytes + sizes->file_nbytes, room = memory_host_room(job);
    if (!sizes->in_memory || need <= room)
        return 0;
    fsdpck_error_set(
        err, FSDPCK_ERR_NOMEM, NULL,
        "key 'fsdp.offload': \"cpu\" takes %.2f GiB of host memory for each rank, of which a rank has %.2f",
        (double)need / 1073741824.0, (double)room / 1073741824.0);
    fsdpck_error_hint(err, "a folder on a local disk instead of \"cpu\" takes fsdp.offload_memory only");
    return err->code;
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
    int rc = check_host_room(job, err);
    if (!rc && apart)
        rc = pin_buffers(r, err);
    if (!rc)
        rc = offload_new(&job->layout, &job->offload, r->host->rank, folder, job->fs.io,
                         apart ? r->offload_pinned.data : r->memory->offload, &r->offload, err);
    if (!rc && apart)
        rc = offload_device_new(r->where->device, r->where->index, &job->offload, r->offload, r->compute->stream,
                                r->memory->offload, &r->offload_device, err);
    return rc;
}

static int open_offload(struct rank *r, struct fsdpck_error *err)
{
    const struct job *job = r->job;
    const char *folder = offload_folder(job->config);
    char line[600];
    if (!job_offloads(job))
        return 0;
    int rc = open_state(r, folder, err);
    if (!rc && job->offload.gradients)
        rc = grad_file_new(&job->layout, r->host->rank, folder, job->fs.io, r->memory->own, &r->grads, err);
    if (rc || !folder || offload_is_direct(r->offload) || !job->fs.note || r->host->rank != 0)
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
                                       .values = r->memory->values,
                                       .kept = r->memory->kept,
                                       .kept_from = sizes.kept_from,
                                       .contribution = r->memory->contribution,
                                       .grad_nelem = l->grad_nelem,
                                       .own = r->own,
                                       .own_nelem = l->own_nelem,
                                       .largest_group_nbytes = sizes.largest_nbytes,
                                       .element_nbytes = job_reduce_widest(r->job),
                                       .rounds = job_rounds(r->job) };
    return linked ? comm_linked_new(r->host, &on, r->where->links, r->memory->received, &r->comm, err)
                  : comm_staged_new(r->host, &on, &r->comm, err);
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
    char message[KERN_MESSAGE_BYTES];
    if (r->grads && r->where->device->stream_new(r->where->index, NULL, &r->sums_stream, message) != KERN_OK)
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
    if (!rc)
        rc = compute_bind(r->compute, r->memory->activations, r->comm->values, r->comm->contribution, err);
    if (!rc)
        rc = gather_new(job, r->linked, r->comm, r->compute, r->memory->ring, &r->gather, err);
    if (!rc && host->nranks > 1 && job->layout.grads_by_group &&
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
    reducer_free(r->reducer);
    gather_free(r->gather);
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
