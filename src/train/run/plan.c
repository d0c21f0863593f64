/* SPDX-License-Identifier: Apache-2.0 */
/* Computes the sizes of a run from its tables. Reads no weights, and counts buffers without allocating
 * them. */
#include "run/plan.h"

#include <string.h>

#include "image/encoding.h"
#include "model/expert_exchange.h"
#include "rank/grad_file.h"
#include "rank/host_rest.h"
#include "rank/owners.h"
#include "run/encoder.h"
#include "run/plan_groups.h"
#include "run/plan_time.h"
#include "run/plan_traffic.h"
#include "state/snapshots.h"

static void count_data(const struct job *job, struct train_plan *out)
{
    struct train_data_facts facts;
    int64_t ntok;
    size_t ndocs;
    data_describe(job->data, &facts);
    out->ndocs = facts.ndocs;
    out->ntok = facts.ntok;
    out->nsupervised = facts.nsupervised;
    out->longest_ntok = facts.longest_ntok;
    out->nrows = facts.nrows;
    job_largest(job, &ntok, &ndocs);
    out->largest_micro_ntok = (uint64_t)ntok;
}

static void count_on_host(const struct job *job, const struct compute *c, struct train_plan *out)
{
    const struct layout *l = &job->layout;
    const struct decode_sizes samples = memory_samples(job, c);
    out->shard_nbytes = job_rest_nbytes(job);
    out->gradient_nbytes =
        (uint64_t)l->grad_nelem * 4 + (job->offload.gradients ? memory_sums_nbytes(job) : (uint64_t)l->own_nelem * 4);
    out->optimizer_nbytes = job->offload.memory_nbytes +
                            (uint64_t)(job_offloads(job) ? l->own_moved : l->own_nelem) * (l->masters ? 12 : 8);
    out->offload_params_nbytes = job_offloads_params(job) ? l->value_nbytes : 0;
    out->activation_nbytes = c->nbytes;
    out->sample_nbytes = samples.device_nbytes + samples.host_nbytes;
    out->expert_nbytes = owners_expert_nbytes(job);
    out->message_nbytes = job_trade_nbytes(job);
    out->peak_nbytes = out->shard_nbytes + out->kept_nbytes + out->buffer_nbytes + out->exchange_nbytes +
                       out->message_nbytes + out->gradient_nbytes + out->optimizer_nbytes + out->snapshot_nbytes +
                       out->spare_nbytes + out->activation_nbytes + out->sample_nbytes;
}

static void count_offload(const struct job *job, bool linked, struct train_plan *out)
{
    const struct offload_sizes *sizes = &job->offload;
    const uint64_t grads = sizes->gradients ? grad_file_disk_nbytes(&job->layout) : 0;
    out->offload_grads_nbytes = sizes->in_memory ? 0 : grads;
    out->offload_file_nbytes = sizes->in_memory ? 0 : sizes->file_nbytes;
    out->offload_step_nbytes = sizes->step_nbytes;
    if (job_rests_on_host(job))
        out->offload_rest_nbytes = linked ? host_rest_pinned_nbytes(job, true) : job_rest_nbytes(job);
    out->offload_host_nbytes =
        job_has_device_memory(job) ? sizes->memory_nbytes + (sizes->in_memory ? sizes->file_nbytes + grads : 0) : 0;
}

/* The snapshot and the spare copies are not included: they are in host memory. */
static void count_on_device(const struct memory_sizes *s, struct train_plan *out)
{
    out->shard_nbytes = s->shard_nbytes;
    out->kept_nbytes = s->kept_nbytes;
    out->gradient_nbytes = s->contribution_nbytes + s->received_nbytes;
    out->optimizer_nbytes = s->state_nbytes;
    out->activation_nbytes = s->activation_nbytes;
    out->sample_nbytes = s->sample_nbytes;
    out->buffer_nbytes = s->ring_nbytes + s->window_nbytes;
    out->peak_nbytes = memory_sum(s);
}

/* In the first step; micro-batches are spread evenly over the ranks. */
static int count_tokens(const struct job *job, const struct compute *c, struct train_plan *out,
                        struct fsdpck_error *err)
{
    struct step_plan step;
    if (job->config->fsdp.expert_parallel < 2)
        return 0;
    int rc = data_step(job->data, job->config, 0, &step, err);
    out->tokens_step_nbytes = rc ? 0 : exchange_micro_nbytes(c, (int64_t)step.ntok) / job->nranks;
    step_plan_free(&step);
    return rc;
}

int job_plan(const struct job *job, const struct compute *c, const struct rank_device *where,
             const struct memory_sizes *sizes, struct train_plan *out, struct fsdpck_error *err)
{
    const bool separate_memory = where->device->separate_memory, linked = device_is_linked(where, job->nranks);
    const struct layout *l = &job->layout;
    *out = (struct train_plan){ .nsteps = job->nsteps,
                                .ntrained = (uint64_t)l->ntrained,
                                .nfrozen = (uint64_t)l->nfrozen,
                                .nrecomputed = (uint64_t)c->nrecomputed,
                                .nshards = job->mesh.nshards,
                                .nreplicas = job->mesh.nreplicas,
                                .on_device = separate_memory };
    count_data(job, out);
    int rc = plan_traffic(job, separate_memory, linked, out, err);
    if (!rc)
        rc = count_tokens(job, c, out, err);
    if (!rc)
        rc = plan_groups(job, c, linked, out, err);
    count_offload(job, linked, out);
    out->snapshot_nbytes = memory_snapshot_nbytes(job);
    out->spare_nbytes = job_keeps_snapshots(job) ? snapshots_nbytes(job) : 0;
    if (separate_memory)
        count_on_device(sizes, out);
    else
        count_on_host(job, c, out);
    out->all_ranks_nbytes = out->peak_nbytes * job->nranks;
    return rc;
}

/* Opens a device for size queries only: its own kernels report their scratch sizes, on streams of the CPU. Assumes one
 * device per rank. */
static int open_on_paper(const struct job *job, struct rank_device *where, struct kern_device *device,
                         struct fsdpck_error *err)
{
    char message[KERN_MESSAGE_BYTES] = "";
    const struct kern_module *module = NULL;
    *where = (struct rank_device){ .device = kern_device_find("cpu", message) };
    if (!job_has_device_memory(job))
        return 0;
    if (kern_module_open(job->opt->module, &module, message) != KERN_OK)
        return fsdpck_error_set(err, FSDPCK_ERR_IO, NULL, "device '%s': %s", job->opt->device, message);
    *device = *where->device;
    device->separate_memory = true;
    device->row_unit = module->device->row_unit;
    device->ops = module->device->ops;
    device->images = module->device->images;
    where->device = device;
    where->links = job->nranks > 1 ? module->links : NULL;
    return 0;
}

/* Which blocks are recomputed depends on the free memory. For host memory, uses the memory of this host. For a device,
 * reports the sizes with all blocks recomputed and with none. */
static int count_memory(const struct job *job, struct compute *c, const struct rank_device *where,
                        struct train_plan *out, struct fsdpck_error *err)
{
    const bool chooses = c->nchoices > 0, linked = device_is_linked(where, job->nranks);
    struct memory_sizes sizes, least = { 0 };
    int rc = 0;
    if (!where->device->separate_memory) {
        rc = memory_choose(job, where, false, c, &c, 1, err);
        return rc ? rc : job_plan(job, c, where, NULL, out, err);
    }
    if (chooses) {
        compute_recompute(c, c->nchoices);
        rc = memory_count(job, true, linked, c, &least, err);
        compute_recompute(c, 0);
    }
    if (!rc)
        rc = memory_count(job, true, linked, c, &sizes, err);
    if (!rc)
        rc = job_plan(job, c, where, &sizes, out, err);
    out->least_nbytes = chooses ? memory_sum(&least) : 0;
    return rc;
}

int plan_make(const struct job *job, const struct rates *rates, struct train_plan *out, struct fsdpck_error *err)
{
    struct compute *c = NULL;
    struct rank_device where;
    struct kern_device device;
    int64_t ntok;
    size_t ndocs;
    *out = (struct train_plan){ 0 };
    job_largest(job, &ntok, &ndocs);
    int rc = open_on_paper(job, &where, &device, err);
    if (!rc)
        rc = compute_new(&job->model, &job->layout, job->config, ntok, ndocs,
                         &(struct compute_device){ where.device, 0, 1 }, &c, err);
    if (!rc)
        rc = count_memory(job, c, &where, out, err);
    if (!rc && rates)
        rc = plan_time(job, &where, c->nrecomputed, rates, out, err);
    compute_free(c);
    return rc;
}

int plan_encoding(const struct job *job, struct train_plan *out, struct fsdpck_error *err)
{
    struct rank_device where;
    struct kern_device device;
    uint64_t ntexts, npictures;
    if (!job->encoding)
        return 0;
    encoding_count(job->encoding, &ntexts, &npictures);
    out->nto_encode = ntexts + npictures;
    int rc = open_on_paper(job, &where, &device, err);
    if (!rc)
        rc = encoder_count(job, &where, &out->encoding_nbytes, err);
    if (out->peak_nbytes < out->encoding_nbytes)
        out->peak_nbytes = out->encoding_nbytes;
    out->all_ranks_nbytes = out->peak_nbytes * job->nranks;
    return rc;
}
