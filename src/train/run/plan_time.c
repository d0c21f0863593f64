/* SPDX-License-Identifier: Apache-2.0 */
/* A step is the waves of its packets, then the norm and the optimizer. A wave lasts as long as its slowest rank, and a
 * rank as long as its computation and what communication adds. Where ranks compute on the processors that they also
 * communicate with, copies and sums take time from the computation. overlap.h says how much of the waiting for links
 * is hidden. Files of fsdp.offload are read and written at the rate of the disk. */
#include "run/plan_time.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "data/data_pictures.h"
#include "model/expert_exchange.h"
#include "price/overlap.h"
#include "price/paper.h"
#include "rank/device.h"
#include "rank/gather.h"
#include "rank/grad_file.h"
#include "run/plan_links.h"
#include "run/step.h"

/* So many micro-batches of the first steps are looked at, but one step at least. */
enum { MOST_MICROS = 64 };

struct timing {
    const struct job *job;
    const struct rates *rates;
    struct train_plan *out;
    struct paper paper;
    struct compute *c;
    double nthreads;             /* that run for the rank at the same time */
    bool by_group;               /* each group's gradients are exchanged behind its backward pass */
    struct gather_use *gathers;  /* (nuses) */
    struct overlap_use *uses;    /* (nuses) those of the micro-batch in work */
    double *folds;               /* (nuses) seconds of a processor for the sums of gradients behind each */
    uint32_t nuses, *use_of, at; /* at: uses of the computation that have begun */
    uint64_t *trained;           /* (layout.ngroups) elements */
    char *reserved;              /* addresses that are never read or written */
    size_t nreserved;
};

static double seconds_of(const struct timing *t, const struct work *work)
{
    return work_seconds(work, t->rates, t->nthreads);
}

/* The work since the last call belongs to the use that has begun. */
static void settle(struct timing *t)
{
    t->uses[t->use_of[t->at ? t->at - 1 : 0]].compute += seconds_of(t, &t->paper.work);
    t->paper.work = (struct work){ 0 };
}

static int before_group(void *ctx, uint32_t group, struct fsdpck_error *err)
{
    struct timing *t = ctx;
    (void)group, (void)err;
    settle(t);
    t->at++;
    return 0;
}

static void after_group(void *ctx, uint32_t group)
{
    (void)ctx, (void)group;
}

static void count_trained(struct timing *t)
{
    const struct layout *l = &t->job->layout;
    for (size_t i = 0; i < l->nparams; i++) {
        const struct param *p = &l->params[i];
        t->trained[p->group] += p->trainable ? (uint64_t)(p->nrow * p->ncol) : 0;
    }
}

/* What is exchanged behind the use that has begun: the group's gradients are complete. */
static int grads_ready(void *ctx, uint32_t group, struct fsdpck_error *err)
{
    struct timing *t = ctx;
    (void)err;
    settle(t);
    const struct transfer sums = links_exchange(t->job, t->rates, (double)t->trained[group], t->job->nranks);
    t->uses[t->use_of[t->at - 1]].exchange += sums.link;
    t->folds[t->use_of[t->at - 1]] += sums.busy;
    return 0;
}

/* Of a picture only the size counts: what it holds may not have been encoded yet. */
static void fill(struct timing *t, const struct step_plan *plan, const struct micro_batch *micro, uint64_t step)
{
    struct picture *p = &t->c->batch.picture;
    if (!data_has_pictures(t->job->data)) {
        step_fill(&t->c->batch, t->job->data, plan, micro, step);
        return;
    }
    data_picture_size(t->job->data, micro, &p->height, &p->width);
    p->sigma = p->weight = 1;
    t->c->batch.grad_scale = 1;
}

static int run_on_paper(struct timing *t, const struct step_plan *plan, const struct micro_batch *micro, uint64_t step,
                        struct fsdpck_error *err)
{
    const struct compute_hook hook = { before_group, after_group, grads_ready, t };
    double loss;
    memset(t->uses, 0, t->nuses * sizeof *t->uses);
    memset(t->folds, 0, t->nuses * sizeof *t->folds);
    t->at = 0;
    t->paper.work = (struct work){ 0 };
    fill(t, plan, micro, step);
    int rc = compute_micro(t->c, &hook, &loss, err);
    settle(t);
    return rc;
}

/* A gather that reads parameters from their file (fsdp.offload_params). */
static double from_disk(const struct timing *t, double nbytes)
{
    return job_offloads_params(t->job) ? links_disk(t->job, t->rates, nbytes) : 0;
}

/* Seconds of a micro-batch, the first or the last of its packet. */
static void price_micro(struct timing *t, bool first, bool last, struct overlap *out)
{
    double busy = 0;
    for (uint32_t u = 0; u < t->nuses; u++) {
        const struct gather_use *g = &t->gathers[u];
        struct overlap_use *use = &t->uses[u];
        const bool ends = last && t->by_group;
        const double nbytes = (double)(first ? g->first_nbytes : g->later_nbytes);
        const struct transfer gather = links_gather(t->job, t->rates, nbytes, g->within);
        const double mine = (gather.busy + (ends ? t->folds[u] : 0)) / t->nthreads;
        use->after = g->after;
        use->ahead = g->ahead;
        use->gather = gather.link + from_disk(t, nbytes);
        use->exchange = ends ? use->exchange : 0;
        use->compute += mine;
        busy += mine;
    }
    const double tokens = links_tokens(t->rates, (double)exchange_micro_nbytes(t->c, t->c->batch.ntok));
    *out = overlap_run(t->uses, t->nuses);
    out->seconds += tokens;
    out->exposed += busy + tokens;
}

/* The packet whose rank is probably the slowest: the one with the most tokens. */
static size_t largest_packet(const struct step_plan *plan, size_t per, size_t first, size_t end)
{
    size_t best = first;
    int64_t most = -1;
    for (size_t at = first; at < end; at += per) {
        int64_t ntok = 0;
        for (size_t i = at; i < end && i < at + per; i++)
            ntok += plan->micros[i].ntok;
        best = ntok > most ? at : best;
        most = ntok > most ? ntok : most;
    }
    return best;
}

/* Ranks with more threads than processors take turns; those without a packet compute nothing. A launcher may have given
 * each rank processors of its own: then the rates are of those. */
static void share_cores(struct timing *t, double nbusy)
{
    const double most = t->job->opt->launched_nranks ? 1 : t->job->nlocal,
                 share = t->rates->cores / (nbusy < most ? nbusy : most);
    t->nthreads = t->rates->cores && share < t->job->nthreads ? share : t->job->nthreads;
}

/* Sums of gradients that pass `times` between memory and their file (fsdp.offload_gradients). The rank waits. */
static double sums_on_disk(const struct timing *t, double times)
{
    const struct job *job = t->job;
    return job->offload.gradients ? links_disk(job, t->rates, times * (double)grad_file_disk_nbytes(&job->layout)) : 0;
}

static int price_wave(struct timing *t, const struct step_plan *plan, size_t first, uint64_t step, struct overlap *sum,
                      struct fsdpck_error *err)
{
    const size_t per = t->job->config->train.accumulation, all = per * t->job->nranks,
                 end = plan->nmicros - first < all ? plan->nmicros : first + all,
                 at = largest_packet(plan, per, first, end), stop = end - at < per ? end : at + per;
    const struct layout *l = &t->job->layout;
    const double npackets = (double)((end - first + per - 1) / per);
    int rc = 0;
    share_cores(t, npackets);
    for (size_t i = at; i < stop && !rc; i++) {
        struct overlap micro = { 0 };
        rc = run_on_paper(t, plan, &plan->micros[i], step, err);
        if (!rc)
            price_micro(t, first == 0 && i == at, i + 1 == stop, &micro);
        sum->seconds += micro.seconds;
        sum->exposed += micro.exposed;
    }
    const struct transfer sums = links_exchange(t->job, t->rates, (double)l->ntrained, npackets);
    const double exchange = (t->by_group ? 0 : sums.busy + sums.link) + sums_on_disk(t, first == 0 ? 1 : 2),
                 zeroed = 4 * (double)(l->grads_take_turns ? l->grad_nelem + l->ntrained : l->grad_nelem);
    sum->seconds += exchange + zeroed / t->rates->plain[RATES_MEMORY];
    sum->exposed += exchange;
    return rc;
}

/* Seconds that the optimizer state on a disk adds to an update of so many. As many chunks as there are buffers are read
 * and written while the model computes. */
static double state_on_disk(const struct timing *t, double computed, double update)
{
    const struct offload_sizes *o = &t->job->offload;
    if (!o->step_nbytes || o->in_memory)
        return 0;
    const double all = links_disk(t->job, t->rates, 2 * (double)o->step_nbytes),
                 behind = all * (double)(o->nbuffers < o->nchunks ? o->nbuffers : o->nchunks) / (double)o->nchunks,
                 left = all - (behind < computed ? behind : computed);
    return left > update ? left - update : 0;
}

/* The norm and AdamW of a rank's rows, and their way to other replicas. computed: seconds of the step before. */
static void price_update(struct timing *t, double computed, struct overlap *sum)
{
    const struct layout *l = &t->job->layout;
    const struct kern_rows rows = { .x.dtype = KERN_F32, .nrow = l->own_nelem, .ncol = 1 };
    const struct kern_adamw_range range = { .nelem = l->own_nelem, .rounded = l->masters ? t : NULL };
    const struct kern_adamw adamw = { .ranges = &range, .nranges = 1 };
    const double spread = links_spread(t->job, t->rates, (double)t->out->spread_step_nbytes);
    share_cores(t, t->job->nranks);
    t->paper.work = (struct work){ 0 };
    t->paper.ops.sum_squares(NULL, NULL, &rows, 1);
    t->paper.ops.adamw(NULL, &adamw);
    const double update = seconds_of(t, &t->paper.work),
                 waits = state_on_disk(t, computed, update) + sums_on_disk(t, 1) + spread;
    sum->seconds += update + waits;
    sum->exposed += waits;
}

static int price_steps(struct timing *t, struct overlap *sum, uint64_t *nsteps, struct fsdpck_error *err)
{
    size_t nmicros = 0;
    int rc = 0;
    for (*nsteps = 0; *nsteps < t->job->nsteps && nmicros < MOST_MICROS && !rc; (*nsteps)++) {
        struct step_plan plan;
        const double before = sum->seconds;
        const size_t wave = t->job->config->train.accumulation * t->job->nranks;
        rc = data_step(t->job->data, t->job->config, *nsteps, &plan, err);
        for (size_t first = 0; !rc && first < plan.nmicros; first += wave)
            rc = price_wave(t, &plan, first, *nsteps, sum, err);
        t->out->step_ntok += rc ? 0 : (double)plan.ntok;
        nmicros += rc ? 0 : plan.nmicros;
        step_plan_free(&plan);
        if (!rc)
            price_update(t, sum->seconds - before, sum);
    }
    return rc;
}

/* Addresses for everything that the computation points to. An access would end the program. */
static int reserve(struct timing *t, struct fsdpck_error *err)
{
    const struct layout *l = &t->job->layout;
    const size_t grads = (size_t)l->grad_nelem * sizeof(float), page = 4096;
    t->nreserved = (t->c->nbytes / page + l->value_nbytes / page + grads / page + 3) * page;
    void *p = mmap(NULL, t->nreserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return fsdpck_error_nomem(err, t->nreserved);
    t->reserved = p;
    unsigned char *values = (unsigned char *)p + (t->c->nbytes / page + 1) * page;
    char *gradients = (char *)values + (l->value_nbytes / page + 1) * page;
    return compute_bind(t->c, p, values, (float *)(void *)gradients, err);
}

static int open_timing(struct timing *t, const struct rank_device *where, int64_t nrecomputed, struct fsdpck_error *err)
{
    const struct job *job = t->job;
    const bool linked = device_is_linked(where, job->nranks), separate = where->device->separate_memory;
    uint32_t nforward;
    const uint32_t n = compute_uses(&job->layout, &nforward, NULL);
    int64_t ntok;
    size_t ndocs;
    job_largest(job, &ntok, &ndocs);
    t->gathers = calloc(n, sizeof *t->gathers);
    t->uses = calloc(n, sizeof *t->uses);
    t->folds = calloc(n, sizeof *t->folds);
    t->use_of = calloc(n, sizeof *t->use_of);
    t->trained = calloc(job->layout.ngroups, sizeof *t->trained);
    if (!t->gathers || !t->uses || !t->folds || !t->use_of || !t->trained)
        return fsdpck_error_nomem(err, n * sizeof *t->uses);
    count_trained(t);
    paper_open(where->device, &t->paper);
    int rc = gather_timeline(job, separate, linked, t->gathers, t->use_of, &t->nuses, err);
    if (!rc)
        rc = compute_new(&job->model, &job->layout, job->config, ntok, ndocs,
                         &(struct compute_device){ &t->paper.device, 0, 1 }, &t->c, err);
    if (rc)
        return rc;
    compute_recompute(t->c, nrecomputed - t->c->nrecomputed); /* the config has asked for the others */
    return reserve(t, err);
}

static void close_timing(struct timing *t)
{
    compute_free(t->c);
    paper_close(&t->paper);
    if (t->reserved)
        munmap(t->reserved, t->nreserved);
    free(t->gathers);
    free(t->uses);
    free(t->folds);
    free(t->use_of);
    free(t->trained);
}

int plan_time(const struct job *job, const struct rank_device *where, int64_t nrecomputed, const struct rates *rates,
              struct train_plan *out, struct fsdpck_error *err)
{
    struct timing t = { .job = job, .rates = rates, .out = out, .by_group = job->layout.grads_by_group };
    struct overlap sum = { 0 };
    uint64_t nsteps = 0;
    int rc = open_timing(&t, where, nrecomputed, err);
    if (!rc)
        rc = price_steps(&t, &sum, &nsteps, err);
    close_timing(&t);
    if (rc || !nsteps)
        return rc;
    out->step_seconds = sum.seconds / (double)nsteps;
    out->exposed_seconds = sum.exposed / (double)nsteps;
    out->step_ntok /= (double)nsteps;
    return 0;
}
