/* SPDX-License-Identifier: Apache-2.0 */
/* Text out of a whole model. */
#include <train/sample.h>

#include <stdlib.h>
#include <string.h>

#include "model/decode.h"
#include "sample/choose.h"
#include "sample/whole.h"

struct sampler {
    struct whole whole;
    struct choose *choose;
    struct decode *decode;  /* the cache, which holds the prompt */
    float *first;           /* (nvocab) logits after the prompt */
    uint32_t *prompt, *ids; /* (nprompt), (most) */
    size_t nprompt, most;
};

static int check_model(void *ctx, struct model *m, const char *path, struct fsdpck_error *err)
{
    (void)ctx;
    return model_check_decoder(m, path, err);
}

int sampler_open(const char *model, const struct sampler_options *opt, struct sampler **out, struct fsdpck_error *err)
{
    struct sampler *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s)
        return fsdpck_error_nomem(err, sizeof *s);
    int rc = whole_open(model, opt, &(struct whole_choice){ .check = check_model }, &s->whole, err);
    if (!rc)
        rc = choose_new(s->whole.job.model.nvocab, &s->choose, err);
    if (!rc && !(s->first = calloc((size_t)s->whole.job.model.nvocab, sizeof *s->first)))
        rc = fsdpck_error_nomem(err, (size_t)s->whole.job.model.nvocab * sizeof *s->first);
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
    whole_close(&s->whole);
    free(s->first);
    free(s->prompt);
    free(s->ids);
    free(s);
}

int64_t sampler_nvocab(const struct sampler *s)
{
    return s->whole.job.model.nvocab;
}

static int check_ids(const struct sampler *s, const uint32_t *ids, size_t count, struct fsdpck_error *err)
{
    if (count == 0)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "the prompt has no token to go on from");
    if (count > INT32_MAX / 2)
        return fsdpck_error_set(err, FSDPCK_ERR_LIMIT, NULL, "the prompt has %zu tokens; at most %d are supported",
                                count, INT32_MAX / 2);
    for (size_t i = 0; i < count; i++) {
        if (ids[i] >= (uint64_t)s->whole.job.model.nvocab)
            return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, NULL,
                                    "token %zu of the prompt is number %u; the model has %lld", i, ids[i],
                                    (long long)s->whole.job.model.nvocab);
    }
    return 0;
}

/* Reallocates the cache for a prompt of `count` tokens and `most` tokens in total. Drops the previous prompt. */
static int make_room(struct sampler *s, const uint32_t *ids, size_t count, size_t most, struct fsdpck_error *err)
{
    int rc = check_ids(s, ids, count, err);
    decode_free(s->decode);
    s->decode = NULL;
    return rc ? rc : decode_new(s->whole.alone.rank->compute, (int64_t)count, (int64_t)most, NULL, &s->decode, err);
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
    memcpy(s->first, logits, (size_t)s->whole.job.model.nvocab * sizeof *logits);
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
