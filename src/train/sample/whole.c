/* SPDX-License-Identifier: Apache-2.0 */
#include "sample/whole.h"

#include <jansson.h>
#include <fsdpck/base.h>
#include <string.h>
#include <unistd.h>

#include "rank/device.h"
#include "rank/files.h"
#include "state/adapter.h"
#include "state/load.h"
#include "state/sources.h"

/* A checkpoint says how its base was held; a PEFT folder does not. */
static int add_held(json_t *root, const char *adapter, const struct fsdpck_options *opt, struct fsdpck_error *err)
{
    struct fsdpck_source *src = NULL;
    char path[ADAPTER_PATH];
    int rc = files_join(path, adapter, "index.json", err);
    if (rc || access(path, F_OK) != 0)
        return rc;
    rc = fsdpck_source_open(adapter, NULL, opt, &src, err);
    const struct fsdpck_base *base = rc ? NULL : fsdpck_source_base(src);
    if (base && base->held)
        json_object_set_new(json_object_get(root, "dtype"), "base", json_string(base->held));
    fsdpck_source_close(src);
    return rc;
}

/* A bad adapter is an input error (exit 3), not a usage error (exit 2). */
static int make_config(const char *model, const struct sampler_options *opt, struct train_config *out,
                       struct fsdpck_error *err)
{
    const char *dtype = opt->dtype ? opt->dtype : "bf16";
    json_t *root = json_pack("{s:s, s:{s:s}, s:{s:s}}", "model", model, "data", "train", "-", "dtype", "param", dtype);
    struct fsdpck_error why = { 0 };
    int rc = root ? 0 : fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "'%s' is no UTF-8", model);
    *out = (struct train_config){ 0 };
    if (!rc && opt->adapter)
        rc = adapter_put_lora(opt->adapter, root, err);
    if (!rc && opt->adapter)
        rc = add_held(root, opt->adapter, &opt->fs, err);
    if (rc) {
        json_decref(root);
        return rc;
    }
    rc = train_config_take(opt->adapter ? opt->adapter : model, root, out, &why);
    if (rc)
        rc = fsdpck_error_set(err, rc == FSDPCK_ERR_USAGE ? FSDPCK_ERR_FORMAT : rc, why.file, "%s", why.message);
    out->frozen = true;
    return rc;
}

/* The ranks that hold the model: those of a run, or a single one. */
static void choose_ranks(struct whole *s, const struct sampler_options *opt, const struct whole_choice *choice)
{
    const struct job *run = choice->among;
    s->opt =
        run ? *run->opt
            : (struct train_options){
                  .nranks = 1, .device = opt->device, .module = opt->module, .note = opt->fs.note, .ctx = opt->fs.ctx
              };
    s->job = (struct job){ .config = &s->config,
                           .opt = &s->opt,
                           .fs = opt->fs,
                           .first = run ? run->first : 0,
                           .nranks = run ? run->nranks : 1,
                           .nlocal = run ? run->nlocal : 0,
                           .micro_ntok = choice->ntok,
                           .nthreads = opt->nthreads ? opt->nthreads : fsdpck_processors() };
    s->job.mesh = (struct mesh){ .nreplicas = 1, .nshards = s->job.nranks };
}

int whole_describe(const char *model, const struct sampler_options *opt, const struct whole_choice *choice,
                   struct whole *out, struct fsdpck_error *err)
{
    *out = (struct whole){ 0 };
    int rc = make_config(model, opt, &out->config, err);
    if (rc)
        return rc;
    choose_ranks(out, opt, choice);
    rc = device_check(&out->opt, err);
    if (!rc)
        rc = model_read(out->config.model, &out->job.fs, &out->job.model, err);
    if (!rc)
        rc = choice->check(choice->ctx, &out->job.model, out->config.model, err);
    if (!rc)
        rc = sources_packed(&out->job, &out->job.packed, err);
    if (!rc)
        rc = layout_make(&out->job.model, &out->config, &out->job.packed, out->job.nranks, &out->job.layout, err);
    return rc || choice->partial ? rc : job_check_sources(&out->job, err);
}

int whole_open(const char *model, const struct sampler_options *opt, const struct whole_choice *choice,
               struct whole *out, struct fsdpck_error *err)
{
    int rc = whole_describe(model, opt, choice, out, err);
    if (!rc)
        rc = rank_alone_open(&out->job, choice->ntok ? rank_open : rank_open_bare, &out->alone, err);
    return rc ? rc : rank_load(out->alone.rank, false, err);
}

void whole_close(struct whole *w)
{
    rank_alone_close(&w->alone);
    job_free(&w->job);
    train_config_free(&w->config);
    *w = (struct whole){ 0 };
}
