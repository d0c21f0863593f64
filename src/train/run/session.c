/* SPDX-License-Identifier: Apache-2.0 */
/* A single rank in the process of the caller, for tests. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "rank/alone.h"
#include "run/open.h"
#include "run/optimize.h"
#include "run/step.h"
#include "state/load.h"

struct train_session {
    struct train_options opt;
    struct job job;
    struct rank_alone alone;
    float *values, *gradients; /* (own_nelem) host copies of device data; otherwise NULL */
};

static int make_copies(struct train_session *s, struct fsdpck_error *err)
{
    const size_t nelem = (size_t)s->job.layout.own_nelem + 1;
    if (!job_has_device_memory(&s->job))
        return 0;
    s->values = calloc(nelem, sizeof *s->values);
    s->gradients = calloc(nelem, sizeof *s->gradients);
    return s->values && s->gradients ? 0 : fsdpck_error_nomem(err, 2 * nelem * sizeof *s->values);
}

int train_session_open(const struct train_config *config, const struct train_options *opt, struct train_session **out,
                       struct fsdpck_error *err)
{
    struct train_session *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s)
        return fsdpck_error_nomem(err, sizeof *s);
    s->opt = (struct train_options){ .nranks = 1,
                                     .nthreads = opt->nthreads,
                                     .note = opt->note,
                                     .ctx = opt->ctx,
                                     .device = opt->device,
                                     .module = opt->module };
    int rc = job_open(config, &s->opt, &s->job, err);
    s->job.offload.gradients = false; /* train_session_param() gives those of any parameter */
    if (!rc)
        rc = rank_alone_open(&s->job, rank_open, &s->alone, err);
    if (!rc)
        rc = rank_load(s->alone.rank, false, err);
    if (!rc)
        rc = make_copies(s, err);
    if (rc)
        train_session_close(s);
    else
        *out = s;
    return rc;
}

void train_session_close(struct train_session *s)
{
    if (!s)
        return;
    rank_alone_close(&s->alone);
    job_close(&s->job);
    free(s->values);
    free(s->gradients);
    free(s);
}

int train_session_gradients(struct train_session *s, uint64_t step, double *loss, double *norm,
                            struct fsdpck_error *err)
{
    struct step_plan plan;
    struct requests requests = { 0 };
    struct step_facts facts = { 0 };
    s->alone.rank->step = step;
    int rc = data_step(s->job.data, s->job.config, step, &plan, err);
    if (!rc)
        rc = rank_gradients(s->alone.rank, &plan, loss, err);
    if (!rc)
        rc = rank_norm(s->alone.rank, norm, &requests, &facts, err);
    step_plan_free(&plan);
    return rc;
}

int train_session_logits(struct train_session *s, uint64_t step, size_t micro, float **logits, int64_t *ntok,
                         int64_t *nvocab, struct fsdpck_error *err)
{
    struct step_plan plan;
    *logits = NULL;
    int rc = data_step(s->job.data, s->job.config, step, &plan, err);
    if (!rc && micro >= plan.nmicros)
        rc = fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "step %llu has %zu micro-batches", (unsigned long long)step,
                              plan.nmicros);
    if (!rc) {
        const struct micro_batch *m = &plan.micros[micro];
        struct batch *b = &s->alone.rank->compute->batch;
        *ntok = b->ntok = m->ntok;
        *nvocab = s->job.model.nvocab;
        b->ndocs = (int64_t)m->ndocs;
        *b->rng_offset = (struct kern_rng_offset){ .token0 = m->token0 };
        data_fill(s->job.data, m, b->ids, b->positions, b->targets, b->cu_seqlens);
        *logits = calloc((size_t)(*ntok * *nvocab), sizeof **logits);
        rc = *logits ? compute_logits(s->alone.rank->compute, NULL, *logits, err)
                     : fsdpck_error_nomem(err, (size_t)(*ntok * *nvocab) * sizeof **logits);
    }
    if (rc) {
        free(*logits);
        *logits = NULL;
    }
    step_plan_free(&plan);
    return rc;
}

size_t train_session_ntrained(const struct train_session *s)
{
    return s->alone.rank->nslices;
}

int train_session_param(struct train_session *s, size_t i, const char **name, float **values, float **gradients,
                        int64_t *nelem, struct fsdpck_error *err)
{
    const struct layout *l = &s->job.layout;
    const struct param *p = l->params;
    while (!p->trainable || i--)
        p++;
    *name = p->name;
    *nelem = p->nrow * p->ncol;
    *values = s->values ? s->values + p->own_at : rank_master(s->alone.rank, p);
    *gradients = s->values ? s->gradients + p->own_at : s->alone.rank->own + p->own_at;
    if (!s->values)
        return 0;
    const size_t nbytes = (size_t)*nelem * sizeof(float);
    int rc = rank_download(s->alone.rank, s->values + p->own_at, rank_master(s->alone.rank, p), nbytes, err);
    return rc ? rc
              : rank_download(s->alone.rank, s->gradients + p->own_at, s->alone.rank->own + p->own_at, nbytes, err);
}
