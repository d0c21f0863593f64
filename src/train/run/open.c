/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a job from a config: model, data and layout, checked against the files. */
#include "run/open.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/policy_keys.h"
#include "image/prepare.h"
#include "model/wrap.h"
#include "rank/device.h"
#include "rank/files.h"
#include "rank/owners.h"
#include "run/date.h"
#include "run/encoder.h"
#include "run/picture_samples.h"
#include "run/warn.h"
#include "run/samples.h"
#include "state/adapter.h"
#include "state/sources.h"

enum { MOST_ON_PAPER = 1 << 16 }; /* ranks */

static void note_of_data(void *ctx, const char *line)
{
    const struct train_options *opt = ctx;
    opt->note(opt->ctx, line);
}

static void tokenized(void *ctx, uint64_t done_nbytes, uint64_t total_nbytes)
{
    const struct train_options *opt = ctx;
    opt->phase(opt->ctx, TRAIN_TOKENIZING, done_nbytes, total_nbytes);
}

/* Options for reading data: uses the threads of all ranks of this process, which have not started yet, and obeys a
 * stop. */
static struct fsdpck_options for_data(const struct job *job)
{
    struct fsdpck_options opt = job->fs;
    opt.ctx = (void *)job->opt;
    opt.note = job->opt->note ? note_of_data : NULL;
    opt.progress = job->opt->phase ? tokenized : NULL;
    opt.nthreads = job->nthreads * (job->opt->launched_nranks ? 1 : job->nranks);
    opt.stop = job->opt->stop;
    return opt;
}

/* The ranks encode what is found here. */
static int open_pictures(struct job *job, const char *from, struct data **out, struct fsdpck_error *err)
{
    const bool trains = from == job->config->data.train;
    struct picture_samples *samples = trains ? samples_of_pictures(job->samples) : NULL;
    struct prepare p = { .pictures = from, .once = !trains, .on_paper = job->opt->on_paper, .stop = job->opt->stop };
    if (samples)
        p.texts = picture_samples_texts(samples, &p.text_names, &p.ntexts);
    struct picture_set set;
    int rc = image_prepare(&p, job->encoding, &set, err);
    if (!rc && samples)
        picture_samples_find(samples, &set);
    if (!rc)
        rc = data_open_pictures(job->config, &set, out, err);
    picture_set_free(&set);
    return rc;
}

static int open_train(struct job *job, const struct train_config *dated, const struct fsdpck_options *opt,
                      struct fsdpck_error *err)
{
    if (!dated->pipeline)
        return data_open(dated, job->model.nvocab, opt, &job->data, err);
    int rc = encoding_new(job->config, &job->fs, !job->opt->on_paper, &job->encoding, err);
    return rc ? rc : open_pictures(job, job->config->data.train, &job->data, err);
}

static int refuse_key(const char *key, const char *why, struct fsdpck_error *err)
{
    return fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, NULL, "key '%s': %s", key, why);
}

/* What is not done for pictures yet is refused. */
static int check_pictures(const struct job *job, struct fsdpck_error *err)
{
    const struct train_config *c = job->config;
    const struct model *m = &job->model;
    if (m->family)
        return c->pipeline ? refuse_key("model", "the pipeline's transformer is no FLUX.2", err) : 0;
    if (!c->pipeline)
        return refuse_key("model", "the folder of the whole pipeline is wanted, not that of its transformer", err);
    if (m->flux2.guided)
        return refuse_key("model", "a transformer that is guided (FLUX.2 [dev]) is not trained yet", err);
    if (!c->lora.enabled || c->lora.nmodules_to_save)
        return refuse_key("lora", "pictures are trained on with adapters, without modules_to_save", err);
    if (c->data.plan || c->data.nfiles > 1 || c->data.neval_files > 1 || c->data.files[0].weight != 1)
        return refuse_key("data", "pictures come from one folder or file, without weights and without data.plan", err);
    for (size_t i = 0; i < c->fsdp.npolicy; i++)
        if (c->fsdp.policy[i].given[TRAIN_POLICY_PARAM_DTYPE])
            return refuse_key("fsdp.policy", "param_dtype: all groups of a FLUX.2 transformer have one type", err);
    return 0;
}

/* Reads, truncates and packs data.eval as data.train. */
static int open_eval(struct job *job, const struct train_config *dated, const struct fsdpck_options *opt,
                     struct fsdpck_error *err)
{
    struct train_config config = *dated;
    if (!config.data.eval)
        return 0;
    if (config.pipeline)
        return open_pictures(job, config.data.eval, &job->eval, err);
    config.data.train = config.data.eval;
    config.data.files = config.data.eval_files;
    config.data.nfiles = config.data.neval_files;
    config.data.plan = NULL;
    return data_open(&config, job->model.nvocab, opt, &job->eval, err);
}

/* PEFT warns about this too. */
static void note_untied(const struct job *job)
{
    if (job->model.tied && !layout_is_tied(&job->layout) && job->fs.note)
        job->fs.note(job->fs.ctx, "the model ties lm_head to embed_tokens; lora.modules_to_save trains a copy of its "
                                  "own, as PEFT does: with this adapter the two are not tied");
}

/* A host is a group only if its ranks are consecutive. config: of the run, or with the values of an object. */
static int check_hosts(const struct job *job, const struct train_config *config, const struct mesh *mesh,
                       struct fsdpck_error *err)
{
    const struct train_options *opt = job->opt;
    if (!mesh_is_of_hosts(config) || !opt->launched_nranks || opt->launched_rank % mesh->nshards == opt->launched_local)
        return 0;
    fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                     "key 'fsdp.sharding_strategy': the ranks of a host are to be a shard group, but they are not "
                     "consecutive: rank %u is number %u on its host",
                     opt->launched_rank, opt->launched_local);
    fsdpck_error_hint(
        err, "mpirun --map-by core and srun -m block number them so; fsdp.dp_shard_size takes consecutive ranks of any "
             "hosts");
    return err->code;
}

/* The mesh of an object of fsdp.policy, or of the run. */
static int mesh_of(const struct job *job, int32_t object, struct mesh *out, struct fsdpck_error *err)
{
    const struct train_config *c = job->config,
                              config = object < 0 ? *c : config_policy_over(c, &c->fsdp.policy[object]);
    const struct mesh_request req = { &config, object, job->nranks, job->nlocal };
    int rc = mesh_choose(&req, out, err);
    return rc ? rc : check_hosts(job, &config, out, err);
}

static int choose_mesh(struct job *job, struct fsdpck_error *err)
{
    struct mesh mesh;
    int rc = mesh_of(job, MESH_OF_RUN, &job->mesh, err);
    for (size_t i = 0; i < job->config->fsdp.npolicy && !rc; i++) {
        rc = mesh_of(job, (int32_t)i, &mesh, err);
        job->mesh.nkept = rc || !mesh.nkept ? job->mesh.nkept : mesh.nkept;
    }
    return rc;
}

/* Sets the mesh of each parameter, that of its group, and the blocks that are recomputed. Experts that are whole on
 * ranks are so on each host. */
static int place_groups(struct job *job, struct fsdpck_error *err)
{
    struct group_policy *policy;
    int rc = policy_make(job->config, &job->layout, &policy, err);
    for (size_t i = 0; i < job->layout.nparams && !rc; i++) {
        struct param *p = &job->layout.params[i];
        struct mesh mesh = job->mesh;
        if (policy[p->group].object != POLICY_NONE)
            rc = mesh_of(job, policy[p->group].object, &mesh, err);
        p->nshards = p->owned ? mesh_common(mesh.nshards, job->nlocal) : mesh.nshards;
    }
    if (!rc)
        policy_recompute(policy, &job->layout);
    free(policy);
    return rc;
}

/* Before the data: their texts are embedded with its own. */
static int open_samples(struct job *job, const struct train_config *dated, struct fsdpck_error *err)
{
    int rc = samples_open(dated, job->model.nvocab, &job->fs, &job->samples, err);
    struct picture_samples *pictures = samples_of_pictures(job->samples);
    samples_lengths(job->samples, &job->sample_prompt, &job->sample_most);
    if (rc || !pictures)
        return rc;
    return picture_samples_count(pictures, dated, &job->sample_height, &job->sample_width, &job->sample_decoder_nbytes,
                                 err);
}

/* Both depend on the number of ranks. */
static int lay_out(struct job *job, struct fsdpck_error *err)
{
    int rc = layout_make(&job->model, job->config, &job->packed, job->nranks, &job->layout, err);
    if (rc)
        return rc;
    rc = place_groups(job, err);
    if (!rc)
        rc = owners_check(job, err);
    if (!rc)
        rc = offload_count(job->config, &job->layout, job_has_device_memory(job), &job->offload, err);
    if (rc)
        layout_free(&job->layout);
    return rc;
}

/* A default that makes another strategy of it. */
static void note_mesh(const struct job *job)
{
    char line[200];
    if (!job->fs.note || !mesh_is_of_hosts(job->config) || job->mesh.nreplicas > 1 || !job_copies(job))
        return;
    snprintf(line, sizeof line,
             "all %u ranks are on one host, and form one shard group; fsdp.dp_shard_size makes smaller ones",
             job->nranks);
    job->fs.note(job->fs.ctx, line);
}

static void tell(const struct job *job)
{
    note_untied(job);
    note_mesh(job);
    const bool elastic = job->opt->elastic_nranks || job->opt->keeper;
    if (job->fs.note)
        train_config_idle(job->config,
                          &(struct train_job_size){ job->nranks, job_copies(job), elastic, job_has_device_memory(job) },
                          job->fs.note, job->fs.ctx);
}

static void share_processors(struct job *job)
{
    const unsigned share = fsdpck_processors() / (job->nlocal ? job->nlocal : job->nranks);
    job->nthreads = job->opt->nthreads ? job->opt->nthreads : share ? share : 1;
}

int job_set_nranks(struct job *job, uint32_t nranks, struct fsdpck_error *err)
{
    struct job other = *job;
    other.nranks = other.nlocal = nranks;
    share_processors(&other);
    int rc = choose_mesh(&other, err);
    if (!rc)
        rc = lay_out(&other, err);
    if (rc)
        return rc;
    layout_free(&job->layout);
    *job = other;
    return 0;
}

int job_set_config(struct job *job, const struct train_config *config, struct fsdpck_error *err)
{
    struct job other = *job;
    other.config = config;
    int rc = choose_mesh(&other, err);
    if (!rc)
        rc = policy_check(config, &job->layout, err);
    if (!rc)
        rc = place_groups(&other, err);
    if (!rc)
        rc = owners_check(&other, err);
    if (!rc)
        rc = offload_count(config, &job->layout, job_has_device_memory(job), &other.offload, err);
    if (rc)
        return rc;
    *job = other;
    data_set_micro_rows(job->data, config->train.micro_batch_size);
    if (job->eval)
        data_set_micro_rows(job->eval, config->train.micro_batch_size);
    return 0;
}

/* A plan needs no weights, but those that are there must fit. */
static int check_weights(const struct job *job, struct fsdpck_error *err)
{
    char line[FILES_PATH + 100];
    if (!job->opt->on_paper || sources_has_weights(job))
        return job_check_sources(job, err);
    snprintf(line, sizeof line, "%.4000s has no weights: config.json alone is planned", job->config->model);
    if (job->fs.note)
        job->fs.note(job->fs.ctx, line);
    return 0;
}

int job_open(const struct train_config *config, const struct train_options *opt, struct job *out,
             struct fsdpck_error *err)
{
    uint32_t nranks = opt->launched_nranks ? opt->launched_nranks : opt->nranks;
    struct job job = { .config = config, .opt = opt, .first = opt->launched_rank, .nranks = nranks ? nranks : 1 };
    job.nlocal = opt->launched_nranks ? opt->launched_nlocal : opt->ranks_per_host ? opt->ranks_per_host : job.nranks;
    share_processors(&job);
    job.fs = (struct fsdpck_options){ .note = opt->note, .ctx = opt->ctx };
    const struct fsdpck_options data_opt = for_data(&job);
    struct train_config dated = *config;
    *out = (struct job){ 0 };
    if (config->tenants)
        return fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, NULL,
                                "key 'tenants': the config of one training is wanted, as of one tenant");
    if (device_check(opt, err))
        return err->code;
    if (opt->elastic_nranks && opt->launched_nranks)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "only local ranks go on after the loss of one");
    const uint32_t most = opt->on_paper ? MOST_ON_PAPER : COMM_MAX_SUM;
    if (job.nranks > most)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "%u ranks: at most %u are supported", job.nranks, most);
    int rc = offload_check(config, job_has_device_memory(&job), err);
    if (!rc)
        rc = choose_mesh(&job, err);
    if (!rc)
        rc = model_read(config->model, &job.fs, &job.model, err);
    if (!rc)
        rc = check_pictures(&job, err);
    job.model.flux2.ntext = (int64_t)config->image.max_sequence_length;
    if (!rc)
        rc = wrap_check(config, &job.model, err);
    if (!rc)
        rc = sources_packed(&job, &job.packed, err);
    if (!rc)
        rc = lay_out(&job, err);
    if (!rc)
        rc = config->automatic & TRAIN_AUTO_STRATEGY ? 0 : policy_check(config, &job.layout, err);
    if (!rc && config->lora.init_adapter)
        rc = adapter_check_start(config, err);
    if (!rc)
        rc = check_weights(&job, err);
    if (!rc)
        rc = date_choose(config, opt, job.date, err);
    dated.data.date = job.date;
    if (!rc)
        rc = open_samples(&job, &dated, err);
    if (!rc)
        rc = open_train(&job, &dated, &data_opt, err);
    if (!rc)
        rc = open_eval(&job, &dated, &data_opt, err);
    if (!rc && job.encoding)
        rc = encoding_settle(job.encoding, err);
    if (!rc && job.encoding)
        rc = encoder_check(&job, err);
    if (!rc)
        rc = data_nsteps(job.data, config, &job.nsteps, err);
    if (rc)
        job_close(&job);
    else
        tell(&job);
    if (!rc && !data_is_dated(job.data) && !(job.eval && data_is_dated(job.eval)) && !samples_are_dated(job.samples))
        job.date[0] = '\0';
    if (!rc)
        job_warn(&job);
    *out = job;
    return rc;
}

void job_close(struct job *job)
{
    samples_free(job->samples);
    encoding_free(job->encoding);
    job_free(job);
}
