/* SPDX-License-Identifier: Apache-2.0 */
/* Starts the ranks of a run with tenants, again whenever the config is to be read anew, and reports how each tenant
 * ended. */
#include "run/tenants.h"

#include <stdio.h>
#include <string.h>

#include "run/supervise.h"
#include "run/tenants_open.h"

/* What a run knows when its ranks are started again. */
struct round {
    bool again;                              /* the config is to be read anew */
    char paused[TENANTS_MOST][TENANTS_NAME]; /* (npaused) names */
    size_t npaused;
};

/* Counts a tenant's result, and writes its summary. last: no round follows in which it may go on. */
static int count(const struct tenants *t, size_t i, bool well, bool last, struct train_result *result,
                 struct fsdpck_error *err)
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
    if (well && last && opt->on_tenant_end && !job->first)
        opt->on_tenant_end(opt->ctx, job->name, job->config, &own);
    if (job->first || files_check_folder(job, &none))
        return 0;
    return files_write_summary(job, &own, well && !own.failure, err);
}

static void set_paused(struct tenants *t, const struct round *round)
{
    for (size_t i = 0; i < t->nopened; i++)
        for (size_t k = 0; k < round->npaused; k++)
            t->cycle[i].paused |= strcmp(t->jobs[i]->name, round->paused[k]) == 0;
}

static void remember(const struct tenants *t, struct round *round)
{
    round->again = t->results[0].reload;
    round->npaused = 0;
    for (size_t i = 0; i < t->nopened; i++)
        if (t->results[i].paused)
            snprintf(round->paused[round->npaused++], sizeof *round->paused, "%s", t->jobs[i]->name);
}

static int run_ranks(struct tenants *t, struct round *round, struct train_result *result, struct fsdpck_error *err)
{
    struct supervise_end ignored;
    struct fsdpck_error later = { 0 };
    set_paused(t, round);
    int rc = supervise(&t->joint, NULL, t->cycle, result, &ignored, err);
    remember(t, round);
    round->again &= !rc;
    for (size_t i = 0; i < t->nopened; i++)
        count(t, i, !rc, !round->again || !t->results[i].by_reload, result, &later);
    if (!rc && later.code) {
        *err = later;
        rc = later.code;
    }
    return rc;
}

/* From the start of the ranks to their end. */
static int run_round(const struct train_config *config, const struct train_options *opt, struct round *round,
                     struct train_result *result, bool *joined, struct fsdpck_error *err)
{
    struct tenants t;
    *result = (struct train_result){ 0 };
    int rc = tenants_open(&t, config, opt, err);
    if (!rc)
        rc = tenants_join(&t, config, opt, err);
    *joined |= !rc;
    if (!rc)
        rc = run_ranks(&t, round, result, err);
    result->ntenants = t.n;
    result->nfailed += t.n - t.nopened;
    result->failure = result->failure ? result->failure : t.left_out;
    tenants_close(&t);
    return rc;
}

static int check(const struct train_config *config, const char *output_dir, struct fsdpck_error *err)
{
    if (!config->tenants)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "it has no key 'tenants'");
    if (strcmp(config->output_dir, output_dir) != 0)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "key 'output_dir' is another one than at the start");
    return 0;
}

/* A config that cannot be read, or that is of another run, changes nothing. */
static void reread(const struct train_options *opt, const char *output_dir, struct train_config *config)
{
    struct fsdpck_error why = { 0 };
    struct train_config next = { 0 };
    char text[2048], line[2200];
    int rc = opt->reread(opt->ctx, &next, &why);
    if (!rc)
        rc = check(&next, output_dir, &why);
    if (rc) {
        train_config_free(&next);
        snprintf(line, sizeof line, "the config stays what it was: %s", fsdpck_error_format(&why, text, sizeof text));
        if (opt->note)
            opt->note(opt->ctx, line);
        return;
    }
    train_config_free(config);
    *config = next;
}

int tenants_run(const struct train_config *config, const struct train_options *opt, struct train_result *result,
                bool *joined, struct fsdpck_error *err)
{
    struct train_config next = { 0 };
    struct round round = { 0 };
    int rc = run_round(config, opt, &round, result, joined, err);
    while (!rc && round.again) {
        round.again = false;
        reread(opt, config->output_dir, &next);
        rc = run_round(next.tenants ? &next : config, opt, &round, result, joined, err);
    }
    train_config_free(&next);
    return rc;
}
