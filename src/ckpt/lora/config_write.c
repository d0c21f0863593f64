/* SPDX-License-Identifier: Apache-2.0 */
/* Writes adapter_config.json. PEFT before 0.16 fails on unknown keys, so the keys of 0.5 are always written, later ones
 * only if they have an effect. It knows the facts derived from the tensors, not the tensors. */
#include "lora/config.h"

#include <fsdpck/lora.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int put(json_t *o, const char *key, json_t *value)
{
    return json_object_set_new(o, key, value);
}

/* Parses compact text that we wrote. jansson's parser does not notice an allocation failure while it collects a token,
 * and truncates the token; so the result must print as the input. */
static json_t *parse(const char *text)
{
    json_t *o = json_loads(text, JSON_DECODE_ANY, NULL);
    char *back = o ? json_dumps(o, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    bool same = back && strcmp(back, text) == 0;
    free(back);
    if (same)
        return o;
    json_decref(o);
    return NULL;
}

static int put_text(json_t *o, const char *key, const char *text)
{
    return put(o, key, parse(text));
}

/* PEFT writes 32, not 32.0, and some readers need an integer. */
static json_t *number(double v)
{
    return fabs(v) < 0x1p53 && v == trunc(v) ? json_integer((json_int_t)v) : json_real(v);
}

/* Writes into a fsdpck_text, which remembers a failure: json_dumps() overlooks one in a sorted key. */
static int add_text(const char *data, size_t nbytes, void *text)
{
    fsdpck_text_add(text, data, nbytes);
    return 0;
}

void fsdpck_lora_config_number(struct fsdpck_text *t, double v)
{
    json_t *n = number(v);
    t->failed |= !n || json_dump_callback(n, add_text, t, JSON_ENCODE_ANY) != 0;
    json_decref(n);
}

/* Returns whether a key is newer than PEFT 0.5 and has no effect: null, false, empty, or the writer's default. */
static bool has_no_effect(const char *key, const json_t *v)
{
    static const char *const idle[] = { "peft_version",      "runtime_config", "megatron_core",
                                        "qalora_group_size", "loftq_config",   NULL };
    for (const char *const *k = idle; *k; k++)
        if (strcmp(key, *k) == 0)
            return true;
    return json_is_null(v) || json_is_false(v) || (json_is_object(v) && json_object_size(v) == 0) ||
           (json_is_array(v) && json_array_size(v) == 0);
}

/* Makes all keys of PEFT 0.5 with its defaults, then adds the keys of the given file. */
static json_t *make(const struct fsdpck_lora_config *c)
{
    static const char old[] = "{\"auto_mapping\":null,\"base_model_name_or_path\":null,\"bias\":\"none\",\"fan_in_fan_"
                              "out\":false,\"inference_mode\":true,"
                              "\"init_lora_weights\":true,\"layers_pattern\":null,\"layers_to_transform\":null,\"lora_"
                              "alpha\":8,\"lora_dropout\":0.0,"
                              "\"modules_to_save\":null,\"peft_type\":\"LORA\",\"r\":8,\"rank_pattern\":{},\"alpha_"
                              "pattern\":{},\"revision\":null,"
                              "\"target_modules\":[],\"task_type\":null}";
    json_t *o = parse(old), *v;
    const char *key;
    if (c->doc && o)
        json_object_foreach (c->doc, key, v)
            if (json_object_get(o, key) || !has_no_effect(key, v))
                if (json_object_set(o, key, v) != 0) {
                    json_decref(o);
                    return NULL;
                }
    return o;
}

static int fill(json_t *o, const struct fsdpck_lora_facts *f)
{
    int bad = put(o, "peft_type", json_string("LORA")) | put(o, "inference_mode", json_true()) |
              put(o, "r", json_integer((json_int_t)f->r)) | put(o, "lora_alpha", number(f->alpha)) |
              put_text(o, "rank_pattern", f->rank_pattern) | put_text(o, "alpha_pattern", f->alpha_pattern) |
              put_text(o, "modules_to_save", f->modules_to_save);
    if (f->target_modules)
        bad |= put_text(o, "target_modules", f->target_modules);
    if (f->one_by_one)
        json_object_del(o, "target_parameters");
    if (f->target_parameters) /* the version says in which order B has the experts */
        bad |= put_text(o, "target_parameters", f->target_parameters) |
               put(o, "peft_version", json_string(FSDPCK_LORA_FUSED_VERSION));
    if (f->dora)
        bad |= put(o, "use_dora", json_true());
    return bad;
}

static json_t *with_prefix(const json_t *o, const char *prefix)
{
    json_t *out = json_object(), *v;
    const char *key;
    struct fsdpck_text t = { 0 };
    bool bad = !out;
    json_object_foreach ((json_t *)o, key, v) {
        t.nbytes = 0;
        fsdpck_text_printf(&t, "%s%s", prefix, key);
        bad = bad || t.failed || json_object_set(out, t.data, v) != 0;
    }
    fsdpck_text_free(&t);
    if (!bad)
        return out;
    json_decref(out);
    return NULL;
}

int fsdpck_lora_config_write(const struct fsdpck_lora_config *c, const struct fsdpck_lora_facts *facts,
                             const char *prefix, struct fsdpck_text *out, struct fsdpck_error *err)
{
    json_t *o = c->only_tokens ? json_copy(c->doc) : make(c), *named = NULL;
    bool done = o && (c->only_tokens ? put(o, "inference_mode", json_true()) : fill(o, facts)) == 0 &&
                (named = with_prefix(o, prefix)) &&
                json_dump_callback(named, add_text, out, JSON_INDENT(2) | JSON_SORT_KEYS) == 0;
    json_decref(named);
    json_decref(o);
    return done ? fsdpck_text_check(out, err) : fsdpck_error_nomem(err, 4096);
}
