/* SPDX-License-Identifier: Apache-2.0 */
/* Answers questions about adapter_config.json: the settings of a module, as PEFT reads them. Knows no tensors. */
#include "lora/config.h"

#include <fsdpck/lora.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lora/names.h"
#include "lora/pattern.h"

/* Finds the pattern's value for the module, or NULL: the first key that matches, as in PEFT. */
static int find_in_pattern(const struct fsdpck_lora_config *c, const char *key, const char *module,
                           const json_t **found, struct fsdpck_error *err)
{
    json_t *v;
    const char *name;
    *found = NULL;
    json_object_foreach (json_object_get(c->doc, key), name, v) {
        enum fsdpck_pattern_result m = fsdpck_pattern_ends(name, module);
        if (m == PATTERN_UNKNOWN)
            return fsdpck_error_set(
                err, FSDPCK_ERR_UNSUPPORTED, c->file,
                "%s has the expression '%s', which is more than is understood here; list the modules by name", key,
                name);
        if (m == PATTERN_YES) {
            *found = v;
            break;
        }
    }
    return 0;
}

/* PEFT's rule for lists of names: the path itself, or its end after a dot. */
static const char *name_among(const json_t *list, const char *module)
{
    size_t n = strlen(module);
    for (size_t i = 0; json_is_array(list) && i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));
        size_t k = strlen(name);
        if (k && k <= n && strcmp(module + n - k, name) == 0 && (k == n || module[n - k - 1] == '.'))
            return name;
    }
    return NULL;
}

bool fsdpck_lora_config_targets_parameter(const struct fsdpck_lora_config *c, const char *parameter)
{
    return name_among(json_object_get(c->doc, "target_parameters"), parameter) != NULL;
}

bool fsdpck_lora_config_targets_weight(const struct fsdpck_lora_config *c, const char *module)
{
    char name[1024];
    snprintf(name, sizeof name, "%.1000s.weight", module);
    return fsdpck_lora_config_targets_parameter(c, name);
}

/* Patterns match what was targeted: the module, or its weight. */
static int find_for_module(const struct fsdpck_lora_config *c, const char *key, const char *module,
                           const json_t **found, struct fsdpck_error *err)
{
    char weight[1024];
    snprintf(weight, sizeof weight, "%.1000s.weight", module);
    return find_in_pattern(c, key, fsdpck_lora_config_targets_weight(c, module) ? weight : module, found, err);
}

int fsdpck_lora_config_rank(const struct fsdpck_lora_config *c, const char *module, uint64_t *r,
                            struct fsdpck_error *err)
{
    const json_t *v;
    int rc = find_for_module(c, "rank_pattern", module, &v, err);
    *r = !rc && v ? (uint64_t)json_integer_value(v) : c->r;
    return rc;
}

int fsdpck_lora_config_alpha(const struct fsdpck_lora_config *c, const char *module, double *alpha,
                             struct fsdpck_error *err)
{
    const json_t *v;
    int rc = find_for_module(c, "alpha_pattern", module, &v, err);
    *alpha = !rc && v ? json_number_value(v) : c->alpha;
    return rc;
}

bool fsdpck_lora_config_has_targets(const struct fsdpck_lora_config *c)
{
    const json_t *v = json_object_get(c->doc, "target_modules");
    return json_is_string(v) ? strcmp(json_string_value(v), "all-linear") != 0
                             : json_is_array(v) && json_array_size(v) > 0;
}

const char *fsdpck_lora_config_model_class(const struct fsdpck_lora_config *c)
{
    return json_string_value(json_object_get(json_object_get(c->doc, "auto_mapping"), "base_model_class"));
}

const char *fsdpck_lora_config_writer(const struct fsdpck_lora_config *c)
{
    return json_string_value(json_object_get(c->doc, "peft_version"));
}

bool fsdpck_lora_writer_swaps(const char *release)
{
    unsigned major = 0, minor = 0, patch = 0;
    return sscanf(release, "%u.%u.%u", &major, &minor, &patch) >= 2 && major == 0 &&
           (minor < 19 || (minor == 19 && patch < 1));
}

bool fsdpck_lora_config_targets(const struct fsdpck_lora_config *c, const char *module)
{
    const json_t *v = json_object_get(c->doc, "target_modules");
    if (!fsdpck_lora_config_has_targets(c) || fsdpck_lora_config_targets_weight(c, module))
        return true;
    return json_is_string(v) ? fsdpck_pattern_whole(json_string_value(v), module) != PATTERN_NO
                             : name_among(v, module) != NULL;
}

static bool is_excluded(const struct fsdpck_lora_config *c, const char *module)
{
    const json_t *v = json_object_get(c->doc, "exclude_modules");
    return json_is_string(v) ? fsdpck_pattern_whole(json_string_value(v), module) == PATTERN_YES
                             : name_among(v, module) != NULL;
}

/* Returns whether a layer's number may begin at `before`: after one of the patterns, or without patterns after two
 * parts. */
static bool is_behind(const json_t *patterns, const char *module, size_t before)
{
    const char *one = json_string_value(patterns);
    size_t count = one ? *one != '\0' : json_array_size(patterns);
    if (!before || !count)
        return before && memchr(module, '.', before - 1);
    char *path = strndup(module, before - 1);
    bool found = !path;
    for (size_t i = 0; i < count && !found; i++)
        found = fsdpck_pattern_ends(one ? one : json_string_value(json_array_get(patterns, i)), path) != PATTERN_NO;
    free(path);
    return found;
}

static bool find_layer(const json_t *patterns, const char *module, long *index)
{
    struct fsdpck_lora_layer p;
    for (size_t at = 0; fsdpck_lora_layer_find(module + at, &p) && module[at + p.after] == '.'; at += p.after)
        if (is_behind(patterns, module, at + p.before)) {
            *index = p.index;
            return true;
        }
    return false;
}

/* layers_to_transform applies only if target_modules is a list. */
static bool is_in_layers(const struct fsdpck_lora_config *c, const char *module)
{
    const json_t *v = json_object_get(c->doc, "layers_to_transform");
    long index;
    if (!(json_is_integer(v) || json_array_size(v) > 0) || json_is_string(json_object_get(c->doc, "target_modules")))
        return true;
    if (!find_layer(json_object_get(c->doc, "layers_pattern"), module, &index))
        return false;
    bool found = json_is_integer(v) && json_integer_value(v) == index;
    for (size_t i = 0; i < json_array_size(v); i++)
        found = found || json_integer_value(json_array_get(v, i)) == index;
    return found;
}

const char *fsdpck_lora_config_leaves_out(const struct fsdpck_lora_config *c, const char *module)
{
    return is_excluded(c, module) ? "exclude_modules" : is_in_layers(c, module) ? NULL : "layers_to_transform";
}

static bool ends_so(const char *path, size_t n, const char *end)
{
    size_t k = strlen(end);
    return k && k <= n && strncmp(path + n - k, end, k) == 0;
}

bool fsdpck_lora_saves(const char *name, const char *module)
{
    for (size_t n = strcspn(module, ".");; n += 1 + strcspn(module + n + 1, ".")) {
        if (ends_so(module, n, name))
            return true;
        if (!module[n])
            return false;
    }
}

const char *fsdpck_lora_config_saves(const struct fsdpck_lora_config *c, const char *module)
{
    const char *name;
    for (size_t i = 0; (name = fsdpck_lora_config_saved_name(c, i)); i++)
        if (fsdpck_lora_saves(name, module))
            return name;
    return NULL;
}

const char *fsdpck_lora_config_saved_name(const struct fsdpck_lora_config *c, size_t i)
{
    return json_string_value(json_array_get(json_object_get(c->doc, "modules_to_save"), i));
}

/* Returns the list for a module. If the head is tied to the embedding, PEFT gives the head's copy the embedding's
 * list. */
static const json_t *tokens_of(const struct fsdpck_lora_config *c, const char *module)
{
    json_t *v = json_object_get(c->doc, c->only_tokens ? "token_indices" : "trainable_token_indices"), *list,
           *only = NULL;
    const char *name;
    if (!json_is_object(v))
        return v;
    json_object_foreach (v, name, list) {
        if (ends_so(module, strlen(module), name))
            return list;
        only = list;
    }
    return json_object_size(v) == 1 ? only : NULL;
}

bool fsdpck_lora_config_names_tokens(const struct fsdpck_lora_config *c, const char *module)
{
    json_t *list;
    const char *name;
    if (c->only_tokens)
        return true;
    json_object_foreach (json_object_get(c->doc, "trainable_token_indices"), name, list)
        if (ends_so(module, strlen(module), name))
            return true;
    return false;
}

static int by_row(const void *x, const void *y)
{
    uint64_t a = *(const uint64_t *)x, b = *(const uint64_t *)y;
    return a < b ? -1 : a > b;
}

static int check_rows(const struct fsdpck_lora_config *c, const uint64_t *rows, size_t nrows,
                      struct fsdpck_arena *arena, struct fsdpck_error *err)
{
    uint64_t *sorted = fsdpck_arena_array(arena, nrows, sizeof *sorted, err);
    if (!sorted)
        return FSDPCK_ERR_NOMEM;
    memcpy(sorted, rows, nrows * sizeof *rows);
    qsort(sorted, nrows, sizeof *sorted, by_row);
    for (size_t i = 1; i < nrows; i++)
        if (sorted[i] == sorted[i - 1])
            return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, c->file,
                                    "token %llu is trained twice: which of its rows is meant?",
                                    (unsigned long long)sorted[i]);
    return 0;
}

int fsdpck_lora_config_tokens(const struct fsdpck_lora_config *c, struct fsdpck_arena *arena, const char *module,
                              uint64_t **rows, size_t *nrows, struct fsdpck_error *err)
{
    const json_t *list = tokens_of(c, module);
    *rows = NULL;
    *nrows = json_array_size(list);
    if (!*nrows)
        return 0;
    uint64_t *made = fsdpck_arena_array(arena, *nrows, sizeof *made, err);
    if (!made)
        return FSDPCK_ERR_NOMEM;
    for (size_t i = 0; i < *nrows; i++) {
        json_int_t row = json_integer_value(json_array_get(list, i));
        if (row < 0)
            return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, c->file, "token %lld is trained: there is none below 0",
                                    (long long)row);
        made[i] = (uint64_t)row;
    }
    int rc = check_rows(c, made, *nrows, arena, err);
    *rows = rc ? NULL : made;
    return rc;
}

const char *fsdpck_lora_config_pattern(const struct fsdpck_lora_config *c, const char *key, size_t i)
{
    json_t *v;
    const char *name;
    json_object_foreach (json_object_get(c->doc, key), name, v)
        if (i-- == 0)
            return name;
    return NULL;
}

/* Keys of PEFT up to 0.21. This file or config.c reads the other known keys, or they do not change the meaning of the
 * tensors. */
const char *fsdpck_lora_config_unknown(const struct fsdpck_lora_config *c, size_t i)
{
    static const char *const known[] = { "alora_invocation_tokens",
                                         "alpha_pattern",
                                         "arrow_config",
                                         "auto_mapping",
                                         "base_model_name_or_path",
                                         "bias",
                                         "corda_config",
                                         "ensure_weight_tying",
                                         "eva_config",
                                         "exclude_modules",
                                         "fan_in_fan_out",
                                         "inference_mode",
                                         "init_lora_weights",
                                         "init_weights",
                                         "kasa_config",
                                         "layer_replication",
                                         "layers_pattern",
                                         "layers_to_transform",
                                         "loftq_config",
                                         "lora_alpha",
                                         "lora_bias",
                                         "lora_dropout",
                                         "lora_ga_config",
                                         "megatron_config",
                                         "megatron_core",
                                         "modules_to_save",
                                         "monteclora_config",
                                         "peft_type",
                                         "peft_version",
                                         "qalora_group_size",
                                         "r",
                                         "rank_pattern",
                                         "revision",
                                         "runtime_config",
                                         "target_modules",
                                         "target_parameters",
                                         "task_type",
                                         "token_indices",
                                         "trainable_token_indices",
                                         "use_bdlora",
                                         "use_dora",
                                         "use_qalora",
                                         "use_rslora",
                                         "velora_config",
                                         NULL };
    json_t *v;
    const char *key;
    json_object_foreach (c->doc, key, v) {
        const char *const *k = known;
        while (*k && strcmp(*k, key) != 0)
            k++;
        if (!*k && fsdpck_lora_config_has(c, key) && i-- == 0)
            return key;
    }
    return NULL;
}

bool fsdpck_lora_config_picks_layers(const struct fsdpck_lora_config *c)
{
    return fsdpck_lora_config_has(c, "layers_to_transform") || fsdpck_lora_config_has(c, "exclude_modules") ||
           (fsdpck_lora_config_has_targets(c) && json_is_string(json_object_get(c->doc, "target_modules")));
}
