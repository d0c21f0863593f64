/* train_plan: the sizes of a run from its tables alone. No weight is read; buffers are laid out but not touched. */
#include "run/gather.h"
#include "run/job.h"
#include "run/memory.h"
#include "run/samples.h"
#include "state/saver.h"

/* By the processor's kernels, which take as much as a device's, but for some scratch. */
static int count_activations(const struct job *job, uint64_t *nbytes, uint64_t *nrecomputed, struct fsdpck_error *err)
{
    char message[KERN_MESSAGE_BYTES];
    const struct rank_device host = { .device = kern_device_find("cpu", message) };
    const struct compute_device where = { host.device, 0, 1 };
    struct compute *c;
    int64_t ntok;
    size_t ndocs;
    job_largest(job, &ntok, &ndocs);
    int rc = compute_new(&job->model, &job->layout, job->config, ntok, ndocs, &where, &c, err);
    if (rc)
        return rc;
    rc = memory_choose(job, &host, false, c, err);
    *nrecomputed = (uint64_t)c->nrecomputed;
    *nbytes = c->nbytes + samples_nbytes(job->samples, c);
    compute_free(c);
    return rc;
}

/* Of rank 0, which has a packet in every wave, in the first step. */
static int count_traffic(const struct job *job, struct train_plan *out, struct fsdpck_error *err)
{
    struct gather_sizes sizes = { 0 };
    struct step_plan step;
    int rc = data_step(job->data, job->config, 0, &step, err);
    if (!rc)
        rc = gather_count(job, &sizes, err);
    uint64_t per = job->config->train.accumulation, npackets = (step.nmicros + per - 1) / per, nwaves = (npackets + job->nranks - 1) / job->nranks;
    uint64_t micros = step.nmicros < nwaves * per ? step.nmicros : nwaves * per;
    uint64_t gathered = micros ? sizes.micro_nbytes + (micros - 1) * sizes.later_micro_nbytes : 0;
    out->gathered_step_nbytes = gathered * (job->nranks - 1) / job->nranks;
    out->reduced_step_nbytes = (npackets - nwaves) * (uint64_t)job->layout.ntrained * fsdpck_dtype_info(job_comm_sizes(job).reduce)->nbytes / job->nranks;
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

int job_plan(const struct job *job, uint64_t activation_nbytes, uint64_t nrecomputed, struct train_plan *out, struct fsdpck_error *err)
{
    const struct layout *l = &job->layout;
    *out = (struct train_plan){ .nsteps = job->nsteps, .ntrained = (uint64_t)l->ntrained, .nfrozen = (uint64_t)l->nfrozen, .activation_nbytes = activation_nbytes,
                                  .nrecomputed = nrecomputed };
    count_data(job, out);
    out->shard_nbytes = l->value_nbytes / job->nranks;
    out->gradient_nbytes = (uint64_t)(l->grad_nelem + l->own_nelem) * 4;
    out->optimizer_nbytes = (uint64_t)l->own_nelem * (l->masters ? 12 : 8);
    int rc = count_traffic(job, out, err);
    out->snapshot_nbytes = saver_nbytes(l);
    out->peak_nbytes = out->shard_nbytes + out->buffer_nbytes + out->gradient_nbytes + out->optimizer_nbytes + out->snapshot_nbytes + out->activation_nbytes;
    out->all_ranks_nbytes = out->peak_nbytes * job->nranks;
    return rc;
}

int train_plan(const struct train_config *config, const struct train_options *opt, struct train_plan *out, struct fsdpck_error *err)
{
    struct job job;
    uint64_t activations = 0, nrecomputed = 0;
    *out = (struct train_plan){ 0 };
    int rc = job_open(config, opt, &job, err);
    if (rc)
        return rc;
    rc = count_activations(&job, &activations, &nrecomputed, err);
    if (!rc)
        rc = job_plan(&job, activations, nrecomputed, out, err);
    job_close(&job);
    return rc;
}
