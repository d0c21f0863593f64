/* SPDX-License-Identifier: Apache-2.0 */
/* A whole model in this process. Uses the tables and the loading code of training, as a single rank without trained
 * parameters. */
#include <train/sample.h>

#include <jansson.h>
#include <fsdpck/base.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/decode.h"
#include "rank/alone.h"
#include "rank/files.h"
#include "sample/choose.h"
#include "state/adapter.h"
#include "state/load.h"
#include "state/sources.h"

struct sampler {
    struct train_config config;
    struct train_options opt;
    struct job job;
    struct rank_alone alone;
    struct choose *choose;
    struct decode *decode;  /* the cache, which holds the prompt */
    float *first;           /* (nvocab) logits after the prompt */
    uint32_t *prompt, *ids; /* (nprompt), (most) */
    size_t nprompt, most;
};

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

static int open_job(struct sampler *s, const struct sampler_options *opt, struct fsdpck_error *err)
{
    s->opt = (struct train_options){ .nranks = 1, .note = opt->fs.note, .ctx = opt->fs.ctx };
    s->job = (struct job){ .config = &s->config,
                           .opt = &s->opt,
                           .fs = opt->fs,
                           .nranks = 1,
                           .nthreads = opt->nthreads ? opt->nthreads : fsdpck_processors() };
    int rc = model_read(s->config.model, &s->job.fs, &s->job.model, err);
    if (!rc)
        rc = sources_packed(&s->job, &s->job.packed, err);
    if (!rc)
        rc = layout_make(&s->job.model, &s->config, &s->job.packed, 1, &s->job.layout, err);
    return rc ? rc : job_check_sources(&s->job, err);
}

int sampler_open(const char *model, const struct sampler_options *opt, struct sampler **out, struct fsdpck_error *err)
{
    struct sampler *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s)
        return fsdpck_error_nomem(err, sizeof *s);
    int rc = make_config(model, opt, &s->config, err);
    if (!rc)
        rc = open_job(s, opt, err);
    if (!rc)
        rc = rank_alone_open(&s->job, rank_open_bare, &s->alone, err);
    if (!rc)
        rc = rank_load(s->alone.rank, false, err);
    if (!rc)
        rc = choose_new(s->job.model.nvocab, &s->choose, err);
    if (!rc && !(s->first = calloc((size_t)s->job.model.nvocab, sizeof *s->first)))
        rc = fsdpck_error_nomem(err, (size_t)s->job.model.nvocab * sizeof *s->first);
    if (rc)
        sampler_close(s);
    else
        *out = s;
    return rc;
}

void sampler_close(struct sampler *s)
{
    if (!s)
        return;
    decode_free(s->decode);
    choose_free(s->choose);
    rank_alone_close(&s->alone);
    job_free(&s->job);
    train_config_free(&s->config);
    free(s->first);
    free(s->prompt);
    free(s->ids);
    free(s);
}

int64_t sampler_nvocab(const struct sampler *s)
{
    return s->job.model.nvocab;
}

static int check_ids(const struct sampler *s, const uint32_t *ids, size_t count, struct fsdpck_error *err)
{
    if (count == 0)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "the prompt has no token to go on from");
    if (count > INT32_MAX / 2)
        return fsdpck_error_set(err, FSDPCK_ERR_LIMIT, NULL, "the prompt has %zu tokens; at most %d are supported",
                                count, INT32_MAX / 2);
    for (size_t i = 0; i < count; i++) {
        if (ids[i] >= (uint64_t)s->job.model.nvocab)
            return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, NULL,
                                    "token %zu of the prompt is number %u; the model has %lld", i, ids[i],
                                    (long long)s->job.model.nvocab);
    }
    return 0;
}

/* Reallocates the cache for a prompt of `count` tokens and `most` tokens in total. Drops the previous prompt. */
static int make_room(struct sampler *s, const uint32_t *ids, size_t count, size_t most, struct fsdpck_error *err)
{
    int rc = check_ids(s, ids, count, err);
    decode_free(s->decode);
    s->decode = NULL;
    return rc ? rc : decode_new(s->alone.rank->compute, (int64_t)count, (int64_t)most, NULL, &s->decode, err);
}

int sampler_prompt(struct sampler *s, const uint32_t *ids, size_t count, uint64_t max_new_tokens,
                   struct fsdpck_error *err)
{
    const float *logits;
    size_t most = (size_t)(max_new_tokens < INT32_MAX / 2 ? max_new_tokens : INT32_MAX / 2);
    s->nprompt = 0;
    int rc = make_room(s, ids, count, count + most, err);
    if (rc)
        return rc;
    free(s->prompt);
    free(s->ids);
    s->prompt = calloc(count, sizeof *s->prompt);
    s->ids = calloc(most + 1, sizeof *s->ids);
    if (!s->prompt || !s->ids)
        return fsdpck_error_nomem(err, (count + most) * sizeof *s->ids);
    memcpy(s->prompt, ids, count * sizeof *ids);
    rc = decode_prompt(s->decode, NULL, (const int32_t *)s->prompt, (int64_t)count, &logits, err);
    if (rc)
        return rc;
    memcpy(s->first, logits, (size_t)s->job.model.nvocab * sizeof *logits);
    s->nprompt = count;
    s->most = most;
    return 0;
}

int sampler_run(struct sampler *s, const struct sample_rule *rule, uint64_t number, int (*each)(void *ctx, uint32_t id),
                void *ctx, struct sampled *out, struct fsdpck_error *err)
{
    const float *logits = s->first;
    int rc = s->nprompt ? sample_rule_check(rule, err)
                        : fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "there is no prompt to go on from");
    bool wanted = true;
    *out = (struct sampled){ .ids = s->ids };
    if (rc)
        return rc;
    const size_t most = rule->max_new_tokens < s->most ? (size_t)rule->max_new_tokens : s->most;
    decode_rewind(s->decode, (int64_t)s->nprompt);
    choose_begin(s->choose, s->prompt, s->nprompt);
    while (wanted && !out->stopped && out->count < most) {
        uint32_t *id = &s->ids[out->count];
        if (out->count)
            rc = decode_token(s->decode, NULL, (int32_t)id[-1], &logits, err);
        if (!rc)
            rc = choose_token(s->choose, rule, logits, number, out->count, id, err);
        if (rc)
            return rc;
        out->count++;
        out->stopped = choose_is_stop(rule, *id);
        wanted = !each || each(ctx, *id) == 0;
    }
    return 0;
}

int sampler_logits(struct sampler *s, const uint32_t *ids, size_t count, size_t together, const float **logits,
                   struct fsdpck_error *err)
{
    s->nprompt = 0;
    if (together < 1 || together > count)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "%zu of %zu tokens together", together, count);
    int rc = make_room(s, ids, count, count, err);
    if (!rc)
        rc = decode_prompt(s->decode, NULL, (const int32_t *)ids, (int64_t)together, logits, err);
    for (size_t i = together; i < count && !rc; i++)
        rc = decode_token(s->decode, NULL, (int32_t)ids[i], logits, err);
    return rc;
}
