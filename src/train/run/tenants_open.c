/* SPDX-License-Identifier: Apache-2.0 */
/* Opens each tenant as the run that trains it alone, with a folder, a lock and checkpoints of its own, and joins their
 * layouts. A tenant that cannot begin is left out, and a note says why. */
#include "run/tenants_open.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "model/layout_join.h"
#include "rank/files.h"
#include "run/date.h"
#include "run/open.h"
#include "run/resume.h"

/* ---- What a tenant says */

static void say(void *ctx, const char *line)
{
    const struct opened *o = ctx;
    char text[5000];
    snprintf(text, sizeof text, "%s: %.4900s", o->tenant->name, line);
    o->parent->note(o->parent->ctx, text);
    if (o->started && o->parent->on_tenant_note)
        o->parent->on_tenant_note(o->parent->ctx, &o->tenant->config, line);
}

static void say_start(void *ctx, const struct train_start *start)
{
    struct opened *o = ctx;
    o->started = true;
    o->parent->on_start(o->parent->ctx, start);
}

static void say_step(void *ctx, const struct train_metrics *m)
{
    const struct opened *o = ctx;
    o->parent->on_step(o->parent->ctx, m);
}

static void say_phase(void *ctx, enum train_phase phase, uint64_t done, uint64_t total)
{
    const struct opened *o = ctx;
    o->parent->phase(o->parent->ctx, phase, done, total);
}

static struct train_options options_of(struct opened *o)
{
    struct train_options opt = *o->parent;
    opt.note = opt.note ? say : NULL;
    opt.on_start = opt.on_start ? say_start : NULL;
    opt.on_step = opt.on_step ? say_step : NULL;
    opt.phase = opt.phase ? say_phase : NULL;
    opt.ctx = o;
    opt.resume = NULL; /* each from its own folder */
    return opt;
}

/* ---- Opening */

static int check(const struct train_config *first, const struct train_options *opt, size_t n, struct fsdpck_error *err)
{
#define REFUSE(...) fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, NULL, __VA_ARGS__)
    const bool on_device = opt->device && strcmp(opt->device, "cpu") != 0;
    if (n > TENANTS_MOST)
        return REFUSE("key 'tenants' has %zu; a run takes at most %d", n, TENANTS_MOST);
    if (on_device && opt->on_paper)
        return REFUSE("key 'tenants': tenants are planned for the CPU only (--device cpu)");
    if (first->pipeline)
        return REFUSE("key 'tenants': adapters of a model that makes pictures are trained one at a time");
    if (opt->elastic_nranks || opt->keeper)
        return REFUSE("key 'tenants': a run with tenants ends if ranks are lost; without --elastic it goes on from the "
                      "checkpoints when it is started again");
    if (opt->profile)
        return REFUSE("key 'tenants': a run with tenants has no --profile");
    if (opt->resume && strcmp(opt->resume, "auto") != 0)
        return REFUSE("key 'tenants': each tenant goes on from its own checkpoints (--resume auto)");
    if (first->automatic)
        return REFUSE("key 'tenants': with tenants no setting of fsdp or train is \"auto\", but for "
                      "fsdp.activation_checkpointing");
    if (first->fsdp.offload)
        return REFUSE("key 'fsdp.offload': the state of tenants stays in memory");
    return 0;
#undef REFUSE
}

static int choose_start(struct opened *o, bool *found, struct fsdpck_error *err)
{
    int rc = files_check_own(o->job.config, err);
    if (!rc)
        rc = files_make_folders(o->job.config, err);
    if (!rc && !o->job.first)
        rc = fsdpck_folder_lock(o->job.config->output_dir, "run", &o->job.fs, &o->job.lock, err);
    if (!rc) {
        files_clean_up(&o->job);
        rc = resume_choose(&o->job, o->resume, found, err);
    }
    return rc ? rc : date_keep(&o->job, err);
}

static void close_one(struct opened *o)
{
    fsdpck_folder_unlock(o->job.lock);
    o->job.lock = NULL;
    job_close(&o->job);
}

static int open_one(struct opened *o, bool *found, struct fsdpck_error *err)
{
    o->opt = options_of(o);
    int rc = job_open(&o->tenant->config, &o->opt, &o->job, err);
    if (rc)
        return rc;
    o->job.name = o->tenant->name;
    rc = o->opt.on_paper ? 0 : choose_start(o, found, err);
    if (rc)
        close_one(o);
    return rc;
}

static void note_left_out(const struct opened *o, const struct fsdpck_error *why)
{
    char text[2048], line[2200];
    snprintf(line, sizeof line, "the tenant cannot begin, and is left out: %s",
             fsdpck_error_format(why, text, sizeof text));
    if (o->opt.note && !o->opt.launched_rank)
        say((void *)o, line);
}

static int allocate(struct tenants *t, struct fsdpck_error *err)
{
    t->opened = calloc(t->n, sizeof *t->opened);
    t->jobs = calloc(t->n, sizeof *t->jobs);
    t->cycle = calloc(t->n, sizeof *t->cycle);
    void *results = mmap(NULL, t->n * sizeof *t->results, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    t->results = results == MAP_FAILED ? NULL : results;
    return t->opened && t->jobs && t->cycle && t->results ? 0 : fsdpck_error_nomem(err, t->n * sizeof *t->opened);
}

/* Those that cannot begin are left out; if none can, the error is that of the first. The ranks of a launcher open for
 * themselves, and might leave out others than rank 0: there it ends the run. */
static int open_all(struct tenants *t, const struct train_options *opt, struct fsdpck_error *err)
{
    struct fsdpck_error first = { 0 };
    for (size_t i = 0; i < t->n; i++) {
        struct opened *o = &t->opened[t->nopened];
        struct fsdpck_error why = { 0 };
        bool found = false;
        *o = (struct opened){ .tenant = &t->configs[i], .parent = opt };
        if (open_one(o, &found, &why) && opt->launched_nranks) {
            *err = why;
            return why.code;
        }
        if (why.code) {
            note_left_out(o, &why);
            first = first.code ? first : why;
            continue;
        }
        t->jobs[t->nopened] = &o->job;
        t->cycle[t->nopened] = (struct cycle_tenant){ .share = o->tenant->share,
                                                      .resume = found ? o->resume : NULL,
                                                      .results = &t->results[t->nopened] };
        t->nopened++;
    }
    t->left_out = first.code;
    if (!t->nopened)
        *err = first;
    return err->code;
}

/* The run has what all tenants share; what is a tenant's own is not used. */
int tenants_join(struct tenants *t, const struct train_config *config, const struct train_options *opt,
                 struct fsdpck_error *err)
{
    struct layout **layouts = calloc(t->nopened, sizeof *layouts);
    if (!layouts)
        return fsdpck_error_nomem(err, t->nopened * sizeof *layouts);
    for (size_t i = 0; i < t->nopened; i++)
        layouts[i] = &t->jobs[i]->layout;
    t->config = *t->jobs[0]->config;
    t->config.output_dir = config->output_dir;
    t->config.lora.init_adapter = NULL;
    t->joint = *t->jobs[0];
    t->joint.name = NULL;
    t->joint.config = &t->config;
    t->joint.opt = opt;
    t->joint.fs = (struct fsdpck_options){ .note = opt->note, .ctx = opt->ctx };
    t->joint.data = t->joint.eval = NULL;
    t->joint.samples = NULL;
    t->joint.sample_prompt = t->joint.sample_most = 0;
    t->joint.lock = NULL;
    t->joint.nsteps = 0;
    t->joint.tenants = t->jobs;
    t->joint.ntenants = t->nopened;
    int rc = layout_join(layouts, t->nopened, &t->config, &t->joint.layout, err);
    free(layouts);
    return rc;
}

int tenants_open(struct tenants *t, const struct train_config *config, const struct train_options *opt,
                 struct fsdpck_error *err)
{
    *t = (struct tenants){ 0 };
    int rc = train_config_tenants(config, &t->configs, &t->n, err);
    if (!rc)
        rc = check(&t->configs[0].config, opt, t->n, err);
    if (!rc)
        rc = allocate(t, err);
    if (!rc)
        rc = open_all(t, opt, err);
    return rc;
}

void tenants_close(struct tenants *t)
{
    layout_free(&t->joint.layout);
    for (size_t i = 0; i < t->nopened; i++)
        close_one(&t->opened[i]);
    if (t->results)
        munmap(t->results, t->n * sizeof *t->results);
    free(t->opened);
    free(t->jobs);
    free(t->cycle);
    train_config_tenants_free(t->configs, t->n);
}
