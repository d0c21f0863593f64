/* SPDX-License-Identifier: Apache-2.0 */
/* Walks CONFIG.json by the key table. An unknown key, a wrong type or a value out of range is an error that names the
 * key. */
#include "config/config_keys.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FAIL(...) fsdpck_error_set(err, FSDPCK_ERR_USAGE, path, __VA_ARGS__)

static int put_string(const char *path, const struct config_key *key, json_t *value, const char **out,
                      struct fsdpck_error *err)
{
    if (!json_is_string(value) || strlen(json_string_value(value)) != json_string_length(value))
        return FAIL("key '%s': a string is wanted%s", key->name, key->nullable ? ", or null" : "");
    *out = json_string_value(value);
    return 0;
}

static int put_choice(const char *path, const struct config_key *key, json_t *value, unsigned *out,
                      struct fsdpck_error *err)
{
    const char *word = "";
    int rc = put_string(path, key, value, &word, err);
    if (rc)
        return rc;
    int choice = config_key_choice(key, word);
    if (choice < 0 && config_key_is_reserved(key, word))
        return FAIL("key '%s': \"%s\" is not in this version; this one knows %s", key->name, word, key->choices);
    if (choice < 0)
        return FAIL("key '%s': \"%s\" is none of %s", key->name, word, key->choices);
    *out = (unsigned)choice;
    return 0;
}

/* A list of words, or one. */
static int put_choices(const char *path, const struct config_key *key, json_t *value, unsigned *out,
                       struct fsdpck_error *err)
{
    const size_t n = json_is_array(value) ? json_array_size(value) : 1;
    *out = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned choice = 0;
        int rc = put_choice(path, key, json_is_array(value) ? json_array_get(value, i) : value, &choice, err);
        if (rc)
            return rc;
        *out |= 1u << choice;
    }
    return 0;
}

const char *config_show_number(double value, char text[CONFIG_NUMBER])
{
    bool integer = fabs(value) < 1e17 && value == floor(value);
    for (int digits = 6; digits <= 17; digits++) {
        if (integer)
            snprintf(text, CONFIG_NUMBER, "%.0f", value);
        else
            snprintf(text, CONFIG_NUMBER, "%.*g", digits, value);
        if (integer || strtod(text, NULL) == value)
            break;
    }
    return text;
}

static int get_number(const char *path, const struct config_key *key, json_t *value, bool integer, double *out,
                      struct fsdpck_error *err)
{
    if (integer ? !json_is_integer(value) : !json_is_number(value))
        return FAIL("key '%s': %s is wanted%s%s", key->name, integer ? "a whole number" : "a number",
                    key->nullable ? ", or null" : "", key->automatic ? ", or \"auto\"" : "");
    char is[CONFIG_NUMBER], min[CONFIG_NUMBER], max[CONFIG_NUMBER];
    *out = json_number_value(value);
    if (!(*out >= key->min && *out <= key->max))
        return FAIL("key '%s' is %s; it must be %s to %s", key->name, config_show_number(*out, is),
                    config_show_number(key->min, min), config_show_number(key->max, max));
    return 0;
}

static int put_u64s(const char *path, const struct config_key *key, json_t *value, struct train_u64_list *out,
                    struct fsdpck_error *err)
{
    const size_t n = json_is_array(value) ? json_array_size(value) : 1;
    *out = (struct train_u64_list){ .n = 1 };
    if (n == 0 || n > TRAIN_MOST_NUMBERS)
        return FAIL("key '%s': a whole number is wanted, or a list of 1 to %d", key->name, TRAIN_MOST_NUMBERS);
    for (size_t i = 0; i < n; i++) {
        double number;
        if (get_number(path, key, json_is_array(value) ? json_array_get(value, i) : value, true, &number, err))
            return err->code;
        out->values[i] = (uint64_t)number;
    }
    out->n = n;
    return 0;
}

static int put_switch(const char *path, const struct config_key *key, json_t *value, uint64_t *out,
                      struct fsdpck_error *err)
{
    double number = json_is_true(value);
    if (!json_is_boolean(value) && !json_is_integer(value))
        return FAIL("key '%s': true, false or a whole number is wanted", key->name);
    int rc = json_is_boolean(value) ? 0 : get_number(path, key, value, true, &number, err);
    *out = rc ? 0 : (uint64_t)number;
    return rc;
}

/* The config owns *out, also after a failure. */
static int put_names(const char *path, const struct config_key *key, json_t *value, const char *const **out,
                     size_t *count, struct fsdpck_error *err)
{
    size_t n = json_array_size(value);
    if (!json_is_array(value))
        return FAIL("key '%s': a list of names is wanted%s", key->name, key->nullable ? ", or null" : "");
    const char **names = calloc(n + 1, sizeof *names);
    if (!names)
        return fsdpck_error_nomem(err, n * sizeof *names);
    *out = names;
    *count = n;
    for (size_t i = 0; i < n; i++) {
        names[i] = json_string_value(json_array_get(value, i));
        if (!names[i])
            return FAIL("key '%s': entry %zu is no string", key->name, i);
        if (!*names[i])
            return FAIL("key '%s': entry %zu is empty", key->name, i);
    }
    return 0;
}

/* Of the names at `list`. */
static size_t *count_of(struct train_config *c, const char *const **list)
{
    return list == &c->lora.modules_to_save     ? &c->lora.nmodules_to_save
           : list == &c->lora.target_parameters ? &c->lora.ntarget_parameters
                                                : &c->fsdp.nwrap_classes;
}

/* An empty list is for an adapter of parameters alone (check_together() in config.c). */
static int put_targets(const char *path, const struct config_key *key, json_t *value, struct train_lora_config *lora,
                       struct fsdpck_error *err)
{
    lora->all_linear = json_is_string(value) && strcmp(json_string_value(value), "all-linear") == 0;
    if (json_is_string(value)) {
        lora->target_regex = lora->all_linear ? NULL : json_string_value(value);
        return 0;
    }
    if (!json_is_array(value))
        return FAIL("key '%s': a list of module names, a regular expression or \"all-linear\" is wanted", key->name);
    return put_names(path, key, value, &lora->target_names, &lora->ntarget_names, err);
}

static int put_patterns(const char *path, const struct config_key *key, json_t *value, const struct train_pattern **out,
                        size_t *count, struct fsdpck_error *err)
{
    const char *regex;
    json_t *number;
    int rc = 0;
    if (!json_is_object(value))
        return FAIL("key '%s': an object of patterns and numbers is wanted", key->name);
    struct train_pattern *patterns = calloc(json_object_size(value) + 1, sizeof *patterns);
    if (!patterns)
        return fsdpck_error_nomem(err, json_object_size(value) * sizeof *patterns);
    *out = patterns;
    json_object_foreach (value, regex, number) {
        patterns[*count].regex = regex;
        if (!rc)
            rc = get_number(path, key, number, key->integer, &patterns[(*count)++].value, err);
    }
    return rc;
}

static int put_file(const char *path, const struct config_key *key, json_t *value, struct train_data_file *out,
                    struct fsdpck_error *err)
{
    const char *name;
    json_t *member;
    *out = (struct train_data_file){ .weight = 1 };
    if (json_is_string(value))
        out->path = json_string_value(value);
    json_object_foreach (value, name, member) {
        bool weight = strcmp(name, "weight") == 0;
        if (weight &&
            (!json_is_number(member) || !((out->weight = json_number_value(member)) > 0 && out->weight <= 1000)))
            return FAIL("key '%s': a weight is a number above 0, up to 1000", key->name);
        if (!weight && strcmp(name, "path") != 0)
            return FAIL("key '%s': '%s' is none of path, weight", key->name, name);
        out->path = weight ? out->path : json_string_value(member);
    }
    return out->path && *out->path
               ? 0
               : FAIL("key '%s': the path of a file is wanted, or a list of paths and of {\"path\": …, \"weight\": …}",
                      key->name);
}

static int put_files(const char *path, const struct config_key *key, json_t *value, struct train_config *c,
                     const char **first, struct fsdpck_error *err)
{
    bool train = first == &c->data.train;
    size_t n = json_is_array(value) ? json_array_size(value) : 1;
    if (n == 0)
        return FAIL("key '%s': the list is empty", key->name);
    struct train_data_file *files = calloc(n, sizeof *files);
    if (!files)
        return fsdpck_error_nomem(err, n * sizeof *files);
    *(train ? &c->data.files : &c->data.eval_files) = files;
    *(train ? &c->data.nfiles : &c->data.neval_files) = n;
    for (size_t i = 0; i < n; i++) {
        int rc = put_file(path, key, json_is_array(value) ? json_array_get(value, i) : value, &files[i], err);
        if (rc)
            return rc;
    }
    *first = files[0].path;
    return 0;
}

static int put_null(const char *path, const struct config_key *key, char *at, struct fsdpck_error *err)
{
    if (!key->nullable)
        return FAIL("key '%s': null is not allowed", key->name);
    if (key->type == KEY_STRING || key->type == KEY_FILES || key->type == KEY_NAMES)
        *(const char **)at = NULL;
    else if (key->type == KEY_COLUMNS)
        *(json_t **)at = NULL;
    else
        *(double *)at = 0;
    return 0;
}

/* The columns of an example; chat_encode() and data_line.c read them. */
const char *const config_columns[] = { "messages", "tools",     "conversations", "instruction", "input",
                                       "output",   "system",    "history",       "prompt",      "completion",
                                       "text",     "input_ids", "labels" };
const size_t config_ncolumns = sizeof config_columns / sizeof config_columns[0];

static int check_column(const char *path, const struct config_key *key, const char *name, struct fsdpck_error *err)
{
    char all[256] = "";
    for (size_t i = 0; i < config_ncolumns; i++) {
        if (strcmp(config_columns[i], name) == 0)
            return 0;
        strcat(strcat(all, i ? ", " : ""), config_columns[i]);
    }
    return FAIL("key '%s': '%.60s' is none of %s: the key is this trainer's name of a column, the value the data's",
                key->name, name, all);
}

/* Rejects two names for the same column of the data set. */
static int check_columns(const char *path, const struct config_key *key, json_t *value, struct fsdpck_error *err)
{
    const char *name, *other;
    json_t *column, *same;
    json_object_foreach (value, name, column) {
        if (check_column(path, key, name, err))
            return err->code;
        if (!json_string_length(column))
            return FAIL("key '%s': '%s' is no name of a column", key->name, name);
        json_object_foreach (value, other, same)
            if (strcmp(name, other) < 0 && json_equal(column, same))
                return FAIL("key '%s': '%s' and '%s' are both the column '%.60s'", key->name, name, other,
                            json_string_value(column));
    }
    return json_is_object(value) ? 0 : FAIL("key '%s': an object of names is wanted", key->name);
}

static int check_prompts(const char *path, const struct config_key *key, const json_t *value, struct fsdpck_error *err)
{
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *prompt = json_array_get(value, i);
        if (!json_is_string(prompt) && !json_is_array(prompt) && !json_is_object(prompt))
            return FAIL("key '%s': entry %zu is no text, no list of messages and no object", key->name, i);
    }
    return json_is_array(value) ? 0 : FAIL("key '%s': a list is wanted", key->name);
}

bool config_key_is_auto(const struct config_key *key, const json_t *value)
{
    const char *word = json_string_value(value);
    return key->automatic && word && strcmp(word, "auto") == 0;
}

int config_key_put(const char *path, const struct config_key *key, json_t *value, struct train_config *c,
                   struct fsdpck_error *err)
{
    char *at = (char *)c + key->offset;
    double number;
    int rc;
    if (json_is_null(value))
        return put_null(path, key, at, err);
    if (config_key_is_auto(key, value)) {
        c->automatic |= key->automatic;
        return 0;
    }
    switch (key->type) {
    case KEY_STRING: return put_string(path, key, value, (const char **)at, err);
    case KEY_CHOICE: return put_choice(path, key, value, (unsigned *)at, err);
    case KEY_CHOICES: return put_choices(path, key, value, (unsigned *)at, err);
    case KEY_BOOL:
        *(bool *)at = json_is_true(value);
        return json_is_boolean(value) ? 0 : FAIL("key '%s': true or false is wanted", key->name);
    case KEY_U64:
        rc = get_number(path, key, value, true, &number, err);
        *(uint64_t *)at = rc ? 0 : (uint64_t)number;
        return rc;
    case KEY_U64S: return put_u64s(path, key, value, (struct train_u64_list *)at, err);
    case KEY_SWITCH: return put_switch(path, key, value, (uint64_t *)at, err);
    case KEY_NUMBER: return get_number(path, key, value, false, (double *)at, err);
    case KEY_TARGETS: return put_targets(path, key, value, &c->lora, err);
    case KEY_NAMES:
        return put_names(path, key, value, (const char *const **)at, count_of(c, (const char *const **)at), err);
    case KEY_PATTERNS:
        return put_patterns(path, key, value, (const struct train_pattern **)at,
                            (const struct train_pattern **)at == &c->lora.rank_pattern ? &c->lora.nrank_pattern
                                                                                       : &c->lora.nalpha_pattern,
                            err);
    case KEY_FILES: return put_files(path, key, value, c, (const char **)at, err);
    case KEY_COLUMNS: *(json_t **)at = value; return check_columns(path, key, value, err);
    case KEY_PROMPTS: *(json_t **)at = value; return check_prompts(path, key, value, err);
    case KEY_POLICY: return 0; /* config_policy_put() reads it after all other keys */
    case KEY_TENANTS:
        *(json_t **)at = value;
        return json_is_array(value) || json_is_string(value)
                   ? 0
                   : FAIL("key '%s': a list of objects is wanted, or the path of a folder", key->name);
    }
    return 0;
}

static bool is_section(const char *name)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < config_nkeys; i++) {
        if (strncmp(config_keys[i].name, name, n) == 0 && config_keys[i].name[n] == '.')
            return true;
    }
    return false;
}

/* The component of a key behind `section` (nsection characters; 0: the top level), or "" if the key is in another
 * section. */
static const char *component(const char *key, const char *section, size_t nsection, char out[64])
{
    const char *rest = key + nsection + (nsection > 0);
    bool mine = nsection == 0 || (strncmp(key, section, nsection) == 0 && key[nsection] == '.');
    snprintf(out, 64, "%.*s", mine ? (int)strcspn(rest, ".") : 0, mine ? rest : "");
    return out;
}

/* Reports an unknown key with the nearest name in the section, or with all of its names. */
static int refuse_unknown(const char *path, const char *name, size_t nsection, struct fsdpck_error *err)
{
    const char *own = name + nsection + (nsection > 0);
    char all[1024] = "", best[64] = "", last[64] = "", at[64];
    size_t used = 0;
    for (size_t i = 0; i < config_nkeys; i++) {
        if (!*component(config_keys[i].name, name, nsection, at) || strcmp(at, last) == 0 ||
            used + strlen(at) + 3 > sizeof all)
            continue;
        used += (size_t)sprintf(all + used, "%s%s", used ? ", " : "", at);
        if (!*best || fsdpck_name_distance(own, at) < fsdpck_name_distance(own, best))
            memcpy(best, at, sizeof best);
        memcpy(last, at, sizeof last);
    }
    const unsigned apart = fsdpck_name_distance(own, best);
    if (apart <= 2 && apart < strlen(own) &&
        strlen(best) <= strlen(own) + 2) /* not a mere prefix of a long name: "lr" */
        return FAIL("unknown key '%s'; the nearest is '%.*s%s'", name, (int)(own - name), name, best);
    return nsection ? FAIL("unknown key '%s'; %.*s has %s", name, (int)nsection, name, all)
                    : FAIL("unknown key '%s'; a config has %s", name, all);
}

const struct config_key *config_key_find(const char *name)
{
    for (size_t i = 0; i < config_nkeys; i++) {
        if (strcmp(config_keys[i].name, name) == 0)
            return &config_keys[i];
    }
    return NULL;
}

/* name begins with its section (nsection characters) and a dot. */
static int apply_one(const char *path, const char *name, size_t nsection, json_t *value, struct train_config *c,
                     struct fsdpck_error *err)
{
    const struct config_key *key = config_key_find(name);
    return key ? config_key_put(path, key, value, c, err) : refuse_unknown(path, name, nsection, err);
}

static int apply_section(const char *path, const char *section, json_t *tree, struct train_config *c,
                         struct fsdpck_error *err)
{
    const char *key;
    json_t *value;
    char name[256];
    json_object_foreach (tree, key, value) {
        if (strncmp(key, "//", 2) == 0)
            continue;
        snprintf(name, sizeof name, "%s.%s", section, key);
        int rc = apply_one(path, name, strlen(section), value, c, err);
        if (rc)
            return rc;
    }
    return 0;
}

/* A key of the top level. The name of a section's key, "train.max_steps", is none: it would bypass its section. */
static int apply_top(const char *path, const char *name, json_t *value, struct train_config *c,
                     struct fsdpck_error *err)
{
    const char *dot = strchr(name, '.');
    if (dot && config_key_find(name))
        return FAIL("key '%s': write it as \"%.*s\": { \"%s\": … }", name, (int)(dot - name), name, dot + 1);
    return apply_one(path, name, 0, value, c, err);
}

int config_keys_apply(const char *path, struct train_config *c, struct fsdpck_error *err)
{
    const char *key;
    json_t *value;
    int rc = 0;
    json_object_foreach (c->root, key, value) {
        if (rc || strncmp(key, "//", 2) == 0)
            continue;
        bool section = is_section(key), lora = strcmp(key, "lora") == 0;
        if (lora && json_is_null(value))
            continue;
        c->lora.enabled |= lora;
        if (section && !json_is_object(value))
            rc = FAIL("key '%s': an object is wanted", key);
        else
            rc = section ? apply_section(path, key, value, c, err) : apply_top(path, key, value, c, err);
    }
    return rc;
}

static void put_default(const struct config_key *key, struct train_config *c)
{
    char *at = (char *)c + key->offset;
    switch (key->type) {
    case KEY_STRING: *(const char **)at = key->default_value.text; break;
    case KEY_CHOICE: *(unsigned *)at = (unsigned)config_key_choice(key, key->default_value.text); break;
    case KEY_BOOL: *(bool *)at = key->default_value.yes; break;
    case KEY_SWITCH: *(uint64_t *)at = key->default_value.yes; break;
    case KEY_U64: *(uint64_t *)at = (uint64_t)key->default_value.number; break;
    case KEY_U64S:
        *(struct train_u64_list *)at = (struct train_u64_list){ { (uint64_t)key->default_value.number }, 1 };
        break;
    case KEY_NUMBER: *(double *)at = key->default_value.number; break;
    case KEY_TARGETS: c->lora.all_linear = strcmp(key->default_value.text, "all-linear") == 0; break;
    case KEY_CHOICES: *(unsigned *)at = 0; break;
    case KEY_NAMES:
    case KEY_PATTERNS:
    case KEY_FILES:
    case KEY_COLUMNS:
    case KEY_PROMPTS:
    case KEY_TENANTS:
    case KEY_POLICY: break;
    }
}

void config_keys_defaults(struct train_config *c)
{
    for (size_t i = 0; i < config_nkeys; i++)
        put_default(&config_keys[i], c);
}

int config_keys_required(const char *path, const struct train_config *c, struct fsdpck_error *err)
{
    for (size_t i = 0; i < config_nkeys; i++) {
        const struct config_key *key = &config_keys[i];
        const bool of_tenants = c->tenants && train_config_is_in(key->name, "data");
        if (key->required && !of_tenants && !*(const char *const *)((const char *)c + key->offset))
            return FAIL("key '%s' is missing; it has no default", key->name);
    }
    return 0;
}
