/* SPDX-License-Identifier: Apache-2.0 */
#include "state/settings.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Keys that determine the tokens; then keys that determine rows and steps. */
static const char *const of_content[] = { "data.train", "data.loss_on", "data.on_bad_line", "data.date" };
static const char *const of_rows[] = { "data.weights",          "data.plan",    "data.too_long",
                                       "data.seq_len",          "data.packing", "train.global_batch_size",
                                       "train.micro_batch_size" };
static const char *const of_lora[] = { "lora.r",
                                       "lora.lora_alpha",
                                       "lora.use_rslora",
                                       "lora.use_dora",
                                       "lora.rank_pattern",
                                       "lora.alpha_pattern",
                                       "lora.target_modules",
                                       "lora.target_parameters",
                                       "lora.modules_to_save" };
#define COUNT(list) (sizeof list / sizeof list[0])

static json_t *text_or_null(const char *text)
{
    return text ? json_string(text) : json_null();
}

void settings_put_word(json_t *o, const char *key, unsigned choice)
{
    char word[TRAIN_WORD_NBYTES];
    json_object_set_new(o, key, json_string(train_config_word(key, choice, word)));
}

static void put_data(json_t *settings, const struct job *job)
{
    const struct train_config *c = job->config;
    json_t *paths = json_array(), *weights = json_array();
    char content[20];
    for (size_t i = 0; i < c->data.nfiles; i++) {
        json_array_append_new(paths, json_string(c->data.files[i].path));
        json_array_append_new(weights, json_real(c->data.files[i].weight));
    }
    snprintf(content, sizeof content, "%016" PRIx64, data_content(job->data));
    json_object_set_new(settings, "content", json_string(content));
    json_object_set_new(settings, "data.train", paths);
    json_object_set_new(settings, "data.weights", weights);
    json_object_set_new(settings, "data.plan", text_or_null(c->data.plan));
    settings_put_word(settings, "data.loss_on", c->data.loss_on);
    settings_put_word(settings, "data.on_bad_line", c->data.on_bad_line);
    settings_put_word(settings, "data.too_long", c->data.too_long);
    json_object_set_new(settings, "data.seq_len", json_integer((json_int_t)c->data.seq_len));
    json_object_set_new(settings, "data.packing", json_boolean(c->data.packing));
    json_object_set_new(settings, "data.date", text_or_null(job->date[0] ? job->date : NULL));
    json_object_set_new(settings, "train.global_batch_size", json_integer((json_int_t)c->train.global_batch_size));
    json_object_set_new(settings, "train.micro_batch_size", json_integer((json_int_t)c->train.micro_batch_size));
}

static json_t *patterns(const struct train_pattern *list, size_t count)
{
    json_t *o = json_object();
    for (size_t i = 0; i < count; i++)
        json_object_set_new(o, list[i].regex, json_real(list[i].value));
    return o;
}

static json_t *names(const char *const *list, size_t count)
{
    json_t *all = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(all, json_string(list[i]));
    return all;
}

static void put_lora(json_t *settings, const struct train_lora_config *lora)
{
    json_object_set_new(settings, "lora.r", json_integer((json_int_t)lora->r));
    json_object_set_new(settings, "lora.lora_alpha", json_real(lora->alpha));
    json_object_set_new(settings, "lora.use_rslora", json_boolean(lora->use_rslora));
    json_object_set_new(settings, "lora.use_dora", json_boolean(lora->use_dora));
    json_object_set_new(settings, "lora.rank_pattern", patterns(lora->rank_pattern, lora->nrank_pattern));
    json_object_set_new(settings, "lora.alpha_pattern", patterns(lora->alpha_pattern, lora->nalpha_pattern));
    json_object_set_new(settings, "lora.target_modules",
                        lora->all_linear     ? json_string("all-linear")
                        : lora->target_regex ? json_string(lora->target_regex)
                                             : names(lora->target_names, lora->ntarget_names));
    json_object_set_new(settings, "lora.target_parameters", names(lora->target_parameters, lora->ntarget_parameters));
    json_object_set_new(settings, "lora.modules_to_save", names(lora->modules_to_save, lora->nmodules_to_save));
}

json_t *settings_of(const struct job *job)
{
    json_t *settings = json_object();
    json_object_set_new(settings, "model", json_string(job->config->model));
    put_data(settings, job);
    if (job->config->lora.enabled)
        put_lora(settings, &job->config->lora);
    return settings;
}

static void __attribute__((format(printf, 2, 3))) add(struct settings_diff *list, const char *fmt, ...)
{
    size_t n = strlen(list->text);
    va_list ap;
    va_start(ap, fmt);
    if (n > 0 && n + 3 < sizeof list->text)
        n += (size_t)snprintf(list->text + n, sizeof list->text - n, "; ");
    vsnprintf(list->text + n, sizeof list->text - n, fmt, ap);
    va_end(ap);
}

void settings_diff_add(struct settings_diff *list, const char *key, const json_t *was, const json_t *now)
{
    char *a = json_dumps(was, JSON_ENCODE_ANY | JSON_REAL_PRECISION(12)),
         *b = json_dumps(now, JSON_ENCODE_ANY | JSON_REAL_PRECISION(12));
    add(list, "key '%s' was %.100s and is %.100s", key, was && a ? a : "not kept", b ? b : "?");
    free(a);
    free(b);
}

static size_t add_differing(struct settings_diff *list, const char *const *keys, size_t count, const json_t *then,
                            const json_t *now)
{
    size_t n = 0;
    for (size_t i = 0; i < count; i++) {
        const json_t *was = json_object_get(then, keys[i]), *is = json_object_get(now, keys[i]);
        if (!was || !is || json_equal(was, is))
            continue;
        settings_diff_add(list, strcmp(keys[i], "data.weights") == 0 ? "data.train (weights)" : keys[i], was, is);
        n++;
    }
    return n;
}

/* Compares tokens, not paths: equal tokens from other files are the same data. */
static void add_data(struct settings_diff *list, const json_t *then, const json_t *now)
{
    bool other = !json_equal(json_object_get(then, "content"), json_object_get(now, "content"));
    size_t found = other ? add_differing(list, of_content, COUNT(of_content), then, now) : 0;
    if (other && !found)
        add(list, "key 'data.train': the text in the files, or the tokenizer or chat template of 'model', is not that "
                  "of this checkpoint");
    found += add_differing(list, of_rows, COUNT(of_rows), then, now);
    if (!other && !found && list->ndiffering < 2) /* the seed alone changes the rows */
        add(list, "key 'data.plan': the plan in the file is not that of this checkpoint");
}

void settings_diff_find(struct settings_diff *list, const char *hash, const json_t *then, const json_t *now)
{
    bool model = strcmp(hash, "model") == 0, data = strcmp(hash, "data") == 0;
    if (!then)
        add(list, model  ? "key 'model' is not what this checkpoint was made with"
                  : data ? "one of the keys data.train, data.plan, data.loss_on, data.seq_len, data.packing, "
                           "data.too_long, train.global_batch_size, train.micro_batch_size is "
                           "not what this checkpoint was made with"
                         : "one of the keys lora.r, lora.lora_alpha, lora.use_rslora, lora.rank_pattern, "
                           "lora.alpha_pattern, lora.target_modules is not what this "
                           "checkpoint was made with");
    else if (model && json_equal(json_object_get(then, "model"), json_object_get(now, "model")))
        add(list, "key 'model': its config.json says other sizes, or another RoPE, than this checkpoint's");
    else if (model)
        settings_diff_add(list, "model", json_object_get(then, "model"), json_object_get(now, "model"));
    else if (data)
        add_data(list, then, now);
    else if (add_differing(list, of_lora, COUNT(of_lora), then, now) == 0 && strcmp(hash, "lora.scales") == 0 &&
             !list->text[0])
        add(list, "the patterns in key 'lora.rank_pattern' or 'lora.alpha_pattern' stand in another order");
}
