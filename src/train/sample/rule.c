/* SPDX-License-Identifier: Apache-2.0 */
/* Reads generation defaults from a model folder: generation_config.json, and config.json for keys missing there, as
 * transformers does. */
#include <train/sample.h>

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "text/file.h"

enum { PATH = 4096 };

/* Unsupported keys that change the text, and the value that disables each. */
static const struct {
    const char *key;
    double off;
} not_done[] = {
    { "num_beams", 1 },
    { "num_beam_groups", 1 },
    { "penalty_alpha", 0 },
    { "min_p", 0 },
    { "typical_p", 1 },
    { "epsilon_cutoff", 0 },
    { "eta_cutoff", 0 },
    { "no_repeat_ngram_size", 0 },
    { "bad_words_ids", 0 },
    { "min_length", 0 },
    { "min_new_tokens", 0 },
    { "encoder_repetition_penalty", 1 },
    { "suppress_tokens", 0 },
    { "begin_suppress_tokens", 0 },
    { "sequence_bias", 0 },
    { "guidance_scale", 1 },
    { "forced_bos_token_id", 0 },
    { "forced_eos_token_id", 0 },
    { "exponential_decay_length_penalty", 0 },
    { "top_h", 0 },
    { "stop_strings", 0 },
};

struct reader {
    const char *folder;
    char path[PATH];
    const struct fsdpck_options *opt;
    struct fsdpck_error *err;
};

/* Loads a file from the folder, or from a checkpoint's assets. If there is no such file, *root is NULL. */
static int load(struct reader *r, const char *name, json_t **root)
{
    static const char *const places[] = { "", "assets/" };
    *root = NULL;
    for (size_t i = 0; i < 2; i++) {
        int n = snprintf(r->path, sizeof r->path, "%s/%s%s", r->folder, places[i], name);
        if (n < 0 || (size_t)n >= sizeof r->path || access(r->path, F_OK) != 0)
            continue;
        int rc = text_file_json(r->path, root, r->err);
        return rc || json_is_object(*root)
                   ? rc
                   : fsdpck_error_set(r->err, FSDPCK_ERR_FORMAT, r->path, "a JSON object is wanted");
    }
    return 0;
}

static int add_stop(struct reader *r, const json_t *id, struct sample_rule *rule)
{
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > UINT32_MAX)
        return fsdpck_error_set(r->err, FSDPCK_ERR_FORMAT, r->path,
                                "key 'eos_token_id': a token's number, or a list of them, is wanted");
    if (rule->nstops == SAMPLE_STOPS)
        return fsdpck_error_set(r->err, FSDPCK_ERR_LIMIT, r->path, "key 'eos_token_id': at most %d are supported",
                                SAMPLE_STOPS);
    rule->stops[rule->nstops++] = (uint32_t)json_integer_value(id);
    return 0;
}

static int take_stops(struct reader *r, const json_t *root, struct sample_rule *rule)
{
    const json_t *eos = json_object_get(root, "eos_token_id");
    int rc = 0;
    if (!eos || json_is_null(eos))
        return 0;
    if (!json_is_array(eos))
        return add_stop(r, eos, rule);
    for (size_t i = 0; i < json_array_size(eos) && !rc; i++)
        rc = add_stop(r, json_array_get(eos, i), rule);
    return rc;
}

static int take_number(struct reader *r, const json_t *root, const char *key, double *value)
{
    const json_t *given = json_object_get(root, key);
    if (!given || json_is_null(given))
        return 0;
    *value = json_number_value(given);
    return json_is_number(given)
               ? 0
               : fsdpck_error_set(r->err, FSDPCK_ERR_FORMAT, r->path, "key '%s': a number is wanted", key);
}

static void note_not_done(const struct reader *r, const json_t *root)
{
    char line[PATH + 100];
    for (size_t i = 0; i < sizeof not_done / sizeof not_done[0] && r->opt && r->opt->note; i++) {
        const json_t *value = json_object_get(root, not_done[i].key);
        bool off = !value || json_is_null(value) ||
                   (json_is_number(value) && json_number_value(value) == not_done[i].off) ||
                   (json_is_array(value) && json_array_size(value) == 0) || json_is_false(value);
        snprintf(line, sizeof line, "%s: key '%s' is not done here and not used", r->path, not_done[i].key);
        if (!off)
            r->opt->note(r->opt->ctx, line);
    }
}

/* Without do_sample, temperature is 0; the other keys are kept for a user who sets a temperature. */
static int take_generation(struct reader *r, const json_t *root, struct sample_rule *rule)
{
    double temperature = 1, top_k = SAMPLE_DEFAULT_TOP_K, most = 0;
    int rc = take_number(r, root, "temperature", &temperature);
    if (!rc)
        rc = take_number(r, root, "top_p", &rule->top_p);
    if (!rc)
        rc = take_number(r, root, "top_k", &top_k);
    if (!rc)
        rc = take_number(r, root, "repetition_penalty", &rule->repetition_penalty);
    if (!rc)
        rc = take_number(r, root, "max_new_tokens", &most);
    if (!rc)
        note_not_done(r, root);
    rule->temperature = json_is_true(json_object_get(root, "do_sample")) ? temperature : SAMPLE_DEFAULT_TEMPERATURE;
    rule->top_k = top_k >= 0 && top_k < UINT32_MAX ? (uint64_t)top_k : 0;
    rule->max_new_tokens = most >= 1 && most < INT32_MAX ? (uint64_t)most : rule->max_new_tokens;
    return rc ? rc : sample_rule_check(rule, r->err);
}

int sample_rule_read(const char *model, const struct fsdpck_options *opt, struct sample_rule *out,
                     struct fsdpck_error *err)
{
    struct reader r = { .folder = model, .opt = opt, .err = err };
    struct sample_rule rule = { .max_new_tokens = SAMPLE_DEFAULT_MAX_NEW_TOKENS,
                                .temperature = SAMPLE_DEFAULT_TEMPERATURE,
                                .top_p = SAMPLE_DEFAULT_TOP_P,
                                .top_k = SAMPLE_DEFAULT_TOP_K,
                                .repetition_penalty = 1 };
    json_t *generation, *config = NULL;
    int rc = load(&r, "generation_config.json", &generation);
    if (!rc && generation)
        rc = take_generation(&r, generation, &rule);
    if (!rc)
        rc = take_stops(&r, generation, &rule);
    if (!rc && rule.nstops == 0)
        rc = load(&r, "config.json", &config);
    if (!rc && config)
        rc = take_stops(&r, config, &rule);
    json_decref(generation);
    json_decref(config);
    *out = rule;
    return rc;
}

int sample_rule_check(const struct sample_rule *rule, struct fsdpck_error *err)
{
    if (!(rule->temperature >= 0 && isfinite(rule->temperature)))
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                                "temperature is %g; 0 (the likeliest token) or more is wanted", rule->temperature);
    if (!(rule->top_p > 0 && rule->top_p <= 1))
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "top-p is %g; more than 0 and at most 1 is wanted",
                                rule->top_p);
    if (!(rule->repetition_penalty > 0 && isfinite(rule->repetition_penalty)))
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "repetition_penalty is %g; more than 0 is wanted",
                                rule->repetition_penalty);
    if (rule->max_new_tokens < 1 || rule->max_new_tokens > INT32_MAX)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "%llu new tokens; 1 to %d are wanted",
                                (unsigned long long)rule->max_new_tokens, INT32_MAX);
    return 0;
}
