/* SPDX-License-Identifier: Apache-2.0 */
/* Starts the ranks of a run with tenants, and reports how each tenant ended. */
#include "run/tenants.h"

#include "run/supervise.h"
#include "run/tenants_open.h"

/* Counts a tenant's result, and writes its summary. */
static int count(const struct tenants *t, size_t i, bool well, struct train_result *result, struct fsdpck_error *err)
{
    const struct job *job = t->jobs[i];
    const struct train_options *opt = t->opened[i].parent;
    const struct cycle_result *one = &t->results[i];
    struct train_result own = { 0 };
    struct fsdpck_error none = { 0 };
    supervise_read(job, &one->loop, &own);
    own.failure = one->failed ? one->failed : own.save_failed ? FSDPCK_ERR_IO : own.diverged ? FSDPCK_ERR_FORMAT : 0;
    result->nfinished += own.ndone >= own.nsteps && !own.failure;
    result->nstopped += own.stopped && !own.failure;
    result->nfailed += own.failure != 0;
    result->failure = result->failure ? result->failure : own.failure;
    if (well && opt->on_tenant_end && !job->first)
        opt->on_tenant_end(opt->ctx, job->name, job->config, &own);
    if (job->first || files_check_folder(job, &none))
        return 0;
    return files_write_summary(job, &own, well && !own.failure, err);
}

int tenants_run(const struct train_config *config, const struct train_options *opt, struct train_result *result,
                bool *joined, struct fsdpck_error *err)
{
    struct tenants t;
    struct supervise_end ignored;
    struct fsdpck_error later = { 0 };
    int rc = tenants_open(&t, config, opt, err);
    if (!rc)
        rc = tenants_join(&t, config, opt, err);
    if (!rc) {
        *joined = true;
        rc = supervise(&t.joint, NULL, t.cycle, result, &ignored, err);
        for (size_t i = 0; i < t.nopened; i++)
            count(&t, i, !rc, result, &later);
        if (!rc && later.code) {
            *err = later;
            rc = later.code;
        }
    }
    result->ntenants = t.n;
    result->nfailed += t.n - t.nopened;
    result->failure = result->failure ? result->failure : t.left_out;
    tenants_close(&t);
    return rc;
}
