/* SPDX-License-Identifier: Apache-2.0 */
/* Reads adapter_config.json. Checks the type of every key that is used. Refuses, by name, every PEFT feature that
 * changes the meaning of A and B, so that nothing is exported or merged with a wrong interpretation. */
#include "lora/config.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading ---- */

static int fail_value(const struct fsdpck_lora_config *c, const char *key, const char *wanted, struct fsdpck_error *err)
{
    return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, c->file, "'%s' is not %s", key, wanted);
}

/* false, null and a missing key mean the same. */
static int read_flag(const struct fsdpck_lora_config *c, const char *key, bool *out, struct fsdpck_error *err)
{
    const json_t *v = json_object_get(c->doc, key);
    *out = json_is_true(v);
    return !v || json_is_boolean(v) || json_is_null(v) ? 0 : fail_value(c, key, "true or false", err);
}

static int read_rank(const struct fsdpck_lora_config *c, const char *key, const json_t *v, uint64_t *out,
                     struct fsdpck_error *err)
{
    if (!json_is_integer(v) || json_integer_value(v) < 1)
        return fail_value(c, key, "a whole number of 1 and more", err);
    *out = (uint64_t)json_integer_value(v);
    return 0;
}

static int read_alpha(const struct fsdpck_lora_config *c, const char *key, const json_t *v, double *out,
                      struct fsdpck_error *err)
{
    if (!json_is_number(v) || !isfinite(json_number_value(v)))
        return fail_value(c, key, "a number", err);
    *out = json_number_value(v);
    return 0;
}

static int check_pattern(const struct fsdpck_lora_config *c, const char *key, bool ranks, struct fsdpck_error *err)
{
    json_t *o = json_object_get(c->doc, key), *v;
    const char *name;
    uint64_t r;
    double alpha;
    int rc = !o || json_is_null(o) || json_is_object(o) ? 0 : fail_value(c, key, "an object", err);
    if (!rc && o)
        json_object_foreach (o, name, v) {
            rc = ranks ? read_rank(c, key, v, &r, err) : read_alpha(c, key, v, &alpha, err);
            if (rc)
                return rc;
        }
    return rc;
}

static int check_strings(const struct fsdpck_lora_config *c, const char *key, bool or_one, struct fsdpck_error *err)
{
    const json_t *v = json_object_get(c->doc, key);
    if (!v || json_is_null(v) || (or_one && json_is_string(v)))
        return 0;
    for (size_t i = 0; json_is_array(v) && i < json_array_size(v); i++)
        if (!json_is_string(json_array_get(v, i)))
            return fail_value(c, key, "a list of strings", err);
    return json_is_array(v) ? 0 : fail_value(c, key, "a list of strings", err);
}

static int read_bias(struct fsdpck_lora_config *c, struct fsdpck_error *err)
{
    const json_t *v = json_object_get(c->doc, "bias");
    const char *s = v ? json_string_value(v) : "none";
    if (s && strcmp(s, "none") == 0)
        c->bias = LORA_BIAS_NONE;
    else if (s && strcmp(s, "all") == 0)
        c->bias = LORA_BIAS_ALL;
    else if (s && strcmp(s, "lora_only") == 0)
        c->bias = LORA_BIAS_LORA_ONLY;
    else
        return fail_value(c, "bias", "\"none\", \"all\" or \"lora_only\"", err);
    return 0;
}

/* Refuses initialisations that move part of the base into the adapter: A and B then need a modified base that only the
 * training run had. */
static int check_init(const struct fsdpck_lora_config *c, struct fsdpck_error *err)
{
    static const char *const moved[] = { "pissa", "olora", "corda", "lora_ga", "loftq" };
    const char *s = json_string_value(json_object_get(c->doc, "init_lora_weights"));
    for (size_t i = 0; s && i < sizeof moved / sizeof *moved; i++)
        if (strncmp(s, moved[i], strlen(moved[i])) == 0) {
            fsdpck_error_set(
                err, FSDPCK_ERR_UNSUPPORTED, c->file,
                "init_lora_weights is \"%s\": it changes the base weights, so that A and B fit no published base", s);
            fsdpck_error_hint(
                err, "let PEFT convert it first: save_pretrained(path_initial_model_for_weight_conversion=...)");
            return FSDPCK_ERR_UNSUPPORTED;
        }
    return 0;
}

bool fsdpck_lora_config_has(const struct fsdpck_lora_config *c, const char *key)
{
    const json_t *v = json_object_get(c->doc, key);
    return v && !json_is_null(v) && !json_is_false(v) && !(json_is_object(v) && json_object_size(v) == 0) &&
           !(json_is_array(v) && json_array_size(v) == 0);
}

static int refuse_features(const struct fsdpck_lora_config *c, const char *const *keys, const char *why,
                           struct fsdpck_error *err)
{
    for (; *keys; keys++)
        if (fsdpck_lora_config_has(c, *keys))
            return fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, c->file, "'%s' is set: %s", *keys, why);
    return 0;
}

static int check_kind(struct fsdpck_lora_config *c, struct fsdpck_error *err)
{
    static const char *const other[] = { "use_qalora",        "use_bdlora",   "kasa_config",     "velora_config",
                                         "monteclora_config", "arrow_config", "megatron_config", NULL };
    const char *type = json_string_value(json_object_get(c->doc, "peft_type"));
    c->only_tokens = type && strcmp(type, "TRAINABLE_TOKENS") == 0;
    if (!type || (strcmp(type, "LORA") != 0 && !c->only_tokens))
        return fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, c->file,
                                "peft_type is %s%s%s, \"LORA\" or \"TRAINABLE_TOKENS\" is wanted", type ? "\"" : "",
                                type ? type : "missing", type ? "\"" : "");
    int rc = check_init(c, err);
    return rc ? rc : refuse_features(c, other, "adapters of this kind are not supported", err);
}

static int read_scalars(struct fsdpck_lora_config *c, struct fsdpck_error *err)
{
    const json_t *r = json_object_get(c->doc, "r"), *alpha = json_object_get(c->doc, "lora_alpha");
    c->r = 8; /* PEFT's defaults */
    c->alpha = 8;
    int rc = r ? read_rank(c, "r", r, &c->r, err) : 0;
    if (!rc && alpha)
        rc = read_alpha(c, "lora_alpha", alpha, &c->alpha, err);
    if (!rc)
        rc = read_flag(c, "use_rslora", &c->rslora, err);
    if (!rc)
        rc = read_flag(c, "use_dora", &c->dora, err);
    if (!rc)
        rc = read_flag(c, "lora_bias", &c->lora_bias, err);
    if (!rc)
        rc = read_flag(c, "fan_in_fan_out", &c->fan_in_fan_out, err);
    if (!rc)
        rc = read_flag(c, "ensure_weight_tying", &c->ensure_tying, err);
    return rc ? rc : read_bias(c, err);
}

static bool is_list_of_integers(const json_t *v)
{
    for (size_t i = 0; json_is_array(v) && i < json_array_size(v); i++)
        if (!json_is_integer(json_array_get(v, i)))
            return false;
    return json_is_array(v);
}

static int check_layers(const struct fsdpck_lora_config *c, struct fsdpck_error *err)
{
    const json_t *v = json_object_get(c->doc, "layers_to_transform");
    return !v || json_is_null(v) || json_is_integer(v) || is_list_of_integers(v)
               ? 0
               : fail_value(c, "layers_to_transform", "a whole number or a list of them", err);
}

/* Checks one list for the input embedding, or a list for each module. */
static int check_tokens(const struct fsdpck_lora_config *c, struct fsdpck_error *err)
{
    const char *key = c->only_tokens ? "token_indices" : "trainable_token_indices", *name;
    json_t *v = json_object_get(c->doc, key), *list;
    bool good = !v || json_is_null(v) || is_list_of_integers(v) || (json_is_object(v) && !c->only_tokens);
    if (good && json_is_object(v))
        json_object_foreach (v, name, list)
            good = good && is_list_of_integers(list);
    return good ? 0 : fail_value(c, key, "a list of whole numbers", err);
}

int fsdpck_lora_config_parse(struct fsdpck_lora_config *c, const char *file, const char *text, size_t nbytes,
                             struct fsdpck_error *err)
{
    json_error_t why;
    *c = (struct fsdpck_lora_config){ .file = strdup(file) };
    if (!c->file)
        return fsdpck_error_nomem(err, strlen(file) + 1);
    if (!(c->doc = json_loadb(text, nbytes, JSON_REJECT_DUPLICATES, &why)))
        return fsdpck_error_at(err, FSDPCK_ERR_FORMAT, file, why.position > 0 ? (uint64_t)why.position : 0,
                               "no JSON: %s", why.text);
    if (!json_is_object(c->doc))
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, file, "the JSON is no object");
    int rc = check_kind(c, err);
    if (!rc)
        rc = read_scalars(c, err);
    if (!rc)
        rc = check_pattern(c, "rank_pattern", true, err);
    if (!rc)
        rc = check_pattern(c, "alpha_pattern", false, err);
    if (!rc)
        rc = check_strings(c, "target_modules", true, err);
    if (!rc)
        rc = check_strings(c, "target_parameters", false, err);
    if (!rc)
        rc = check_strings(c, "exclude_modules", true, err);
    if (!rc)
        rc = check_strings(c, "layers_pattern", true, err);
    if (!rc)
        rc = check_layers(c, err);
    if (!rc)
        rc = check_tokens(c, err);
    return rc ? rc : check_strings(c, "modules_to_save", false, err);
}

void fsdpck_lora_config_free(struct fsdpck_lora_config *c)
{
    json_decref(c->doc);
    free(c->file);
    *c = (struct fsdpck_lora_config){ 0 };
}

int fsdpck_lora_config_mergeable(const struct fsdpck_lora_config *c, struct fsdpck_error *err)
{
    static const char *const kept[] = { "alora_invocation_tokens", "layer_replication", NULL };
    return refuse_features(c, kept, "such an adapter cannot be merged into the weights", err);
}
