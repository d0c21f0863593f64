/* SPDX-License-Identifier: Apache-2.0 */
/* train_plan_tenants(): each tenant is planned as the run that trains it alone; what is frozen, and the buffers to
 * gather into, count once. */
#include <stdio.h>
#include <stdlib.h>

#include "rank/gather.h"
#include "run/plan.h"
#include "run/tenants_open.h"

/* The rank's part of the parameters that the job trains. */
static uint64_t trained_nbytes(const struct job *job)
{
    const struct layout *l = &job->layout;
    uint64_t trained = 0;
    for (size_t i = 0; i < l->nparams; i++)
        trained += l->params[i].trainable ? param_value_nbytes(l, &l->params[i]) : 0;
    return (uint64_t)((double)job_rest_nbytes(job) * (double)trained / (double)l->value_nbytes);
}

static int plan_one(const struct job *job, struct train_tenant_plan *out, struct fsdpck_error *err)
{
    const struct train_plan *p = &out->alone;
    int rc = plan_make(job, NULL, &out->alone, err);
    snprintf(out->name, sizeof out->name, "%s", job->name);
    out->own_nbytes = trained_nbytes(job) + p->gradient_nbytes + p->optimizer_nbytes + p->exchange_nbytes +
                      p->snapshot_nbytes + p->activation_nbytes + p->sample_nbytes;
    return rc;
}

/* base_nbytes is set to the frozen shards of one of them. */
static int plan_joint(const struct job *joint, struct train_tenants_plan *out, struct fsdpck_error *err)
{
    struct gather_sizes sizes;
    int rc = gather_count(joint, false, false, &sizes, err);
    if (rc)
        return rc;
    if (!job_hosts_hold_all(joint)) {
        out->base_nbytes += sizes.buffer_nbytes / job_nsharing(joint);
        out->gathered_cycle_nbytes = sizes.received_nbytes;
    }
    out->base_nbytes += job_trade_nbytes(joint);
    out->peak_nbytes = out->base_nbytes;
    for (size_t i = 0; i < out->n; i++)
        out->peak_nbytes += out->tenants[i].own_nbytes;
    return 0;
}

int train_plan_tenants(const struct train_config *config, const struct train_options *opt,
                       struct train_tenants_plan *out, struct fsdpck_error *err)
{
    struct tenants t;
    *out = (struct train_tenants_plan){ 0 };
    int rc = tenants_open(&t, config, opt, err);
    out->tenants = rc ? NULL : calloc(t.nopened, sizeof *out->tenants);
    if (!rc && !out->tenants)
        rc = fsdpck_error_nomem(err, t.nopened * sizeof *out->tenants);
    for (size_t i = 0; i < t.nopened && !rc; i++)
        rc = plan_one(t.jobs[i], &out->tenants[out->n++], err);
    if (!rc)
        out->base_nbytes = out->tenants[0].alone.shard_nbytes - trained_nbytes(t.jobs[0]);
    if (!rc)
        rc = tenants_join(&t, config, opt, err);
    if (!rc)
        rc = plan_joint(&t.joint, out, err);
    tenants_close(&t);
    if (rc) {
        free(out->tenants);
        *out = (struct train_tenants_plan){ 0 };
    }
    return rc;
}
