/* SPDX-License-Identifier: Apache-2.0 */
/* train_plan: computes the sizes of a run from its tables. Reads no weights, and counts buffers without allocating
 * them. */
#include "run/plan.h"

#include <string.h>

#include "rank/gather.h"
#include "run/open.h"
#include "state/saver.h"

/* Traffic of rank 0 in the first step; this rank has a packet in every wave. */
static int count_traffic(const struct job *job, struct train_plan *out, struct fsdpck_error *err)
{
    struct gather_sizes sizes = { 0 };
    struct step_plan step;
    int rc = data_step(job->data, job->config, 0, &step, err);
    if (!rc)
        rc = gather_count(job, &sizes, err);
    uint64_t per = job->config->train.accumulation, npackets = (step.nmicros + per - 1) / per,
             nwaves = (npackets + job->nranks - 1) / job->nranks;
    uint64_t micros = step.nmicros < nwaves * per ? step.nmicros : nwaves * per;
    uint64_t gathered = micros ? sizes.micro_nbytes + (micros - 1) * sizes.later_micro_nbytes : 0;
    out->gathered_step_nbytes = gathered * (job->nranks - 1) / job->nranks;
    out->reduced_step_nbytes = (npackets - nwaves) * (uint64_t)job->layout.ntrained *
                               fsdpck_dtype_info(job_comm_sizes(job).reduce)->nbytes / job->nranks;
    out->buffer_nbytes = job_copies(job) ? sizes.buffer_nbytes : 0;
    step_plan_free(&step);
    return rc;
}

static void count_data(const struct job *job, struct train_plan *out)
{
    struct train_data_facts facts;
    int64_t ntok;
    size_t ndocs;
    data_tell(job->data, &facts);
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
    out->shard_nbytes = l->value_nbytes / job->nranks;
    out->gradient_nbytes = (uint64_t)(l->grad_nelem + l->own_nelem) * 4;
    out->optimizer_nbytes = (uint64_t)l->own_nelem * (l->masters ? 12 : 8);
    out->activation_nbytes = c->nbytes;
    out->sample_nbytes = samples.device_nbytes + samples.host_nbytes;
    out->peak_nbytes = out->shard_nbytes + out->buffer_nbytes + out->gradient_nbytes + out->optimizer_nbytes +
                       out->snapshot_nbytes + out->activation_nbytes + out->sample_nbytes;
}

/* The snapshot is not included: it is in host memory. */
static void count_on_device(const struct memory_sizes *s, struct train_plan *out)
{
    out->shard_nbytes = s->shard_nbytes;
    out->gradient_nbytes = s->contribution_nbytes + s->received_nbytes;
    out->optimizer_nbytes = s->state_nbytes;
    out->activation_nbytes = s->activation_nbytes;
    out->sample_nbytes = s->sample_nbytes;
    out->buffer_nbytes = s->ring_nbytes;
    out->peak_nbytes = memory_sum(s);
}

int job_plan(const struct job *job, const struct compute *c, const struct memory_sizes *device, struct train_plan *out,
             struct fsdpck_error *err)
{
    const struct layout *l = &job->layout;
    *out = (struct train_plan){ .nsteps = job->nsteps,
                                .ntrained = (uint64_t)l->ntrained,
                                .nfrozen = (uint64_t)l->nfrozen,
                                .nrecomputed = (uint64_t)c->nrecomputed,
                                .on_device = device != NULL };
    count_data(job, out);
    int rc = count_traffic(job, out, err);
    out->snapshot_nbytes = saver_nbytes(l);
    if (device)
        count_on_device(device, out);
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
    if (!job_is_apart(job))
        return 0;
    if (kern_module_open(job->opt->module, &module, message) != KERN_OK)
        return fsdpck_error_set(err, FSDPCK_ERR_IO, NULL, "device '%s': %s", job->opt->device, message);
    *device = *where->device;
    device->apart = true;
    device->row_unit = module->device->row_unit;
    device->ops = module->device->ops;
    where->device = device;
    where->links = job->nranks > 1 ? module->links : NULL;
    return 0;
}

/* Which blocks are recomputed depends on the free memory. For host memory, uses the memory of this host. For a device,
 * reports the sizes with all blocks recomputed and with none. */
static int count_memory(const struct job *job, struct compute *c, const struct rank_device *where,
                        struct train_plan *out, struct fsdpck_error *err)
{
    const bool chooses = job->config->fsdp.checkpointing == TRAIN_RECOMPUTE_AUTO,
               linked = device_is_linked(where, job->nranks);
    struct memory_sizes sizes, least = { 0 };
    int rc = 0;
    if (!where->device->apart) {
        rc = memory_choose(job, where, false, c, err);
        return rc ? rc : job_plan(job, c, NULL, out, err);
    }
    if (chooses) {
        compute_recompute(c, job->model.nlayer);
        rc = memory_count(job, true, linked, c, &least, err);
        compute_recompute(c, 0);
    }
    if (!rc)
        rc = memory_count(job, true, linked, c, &sizes, err);
    if (!rc)
        rc = job_plan(job, c, &sizes, out, err);
    out->least_nbytes = chooses ? memory_sum(&least) : 0;
    return rc;
}

int train_plan(const struct train_config *config, const struct train_options *opt, struct train_plan *out,
               struct fsdpck_error *err)
{
    struct job job;
    struct compute *c = NULL;
    struct rank_device where;
    struct kern_device device;
    int64_t ntok;
    size_t ndocs;
    *out = (struct train_plan){ 0 };
    int rc = job_open(config, opt, &job, err);
    if (rc)
        return rc;
    job_largest(&job, &ntok, &ndocs);
    rc = open_on_paper(&job, &where, &device, err);
    if (!rc)
        rc = compute_new(&job.model, &job.layout, config, ntok, ndocs, &(struct compute_device){ where.device, 0, 1 },
                         &c, err);
    if (!rc)
        rc = count_memory(&job, c, &where, out, err);
    compute_free(c);
    job_close(&job);
    return rc;
}
