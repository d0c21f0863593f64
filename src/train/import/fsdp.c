/* SPDX-License-Identifier: Apache-2.0 */
/* The FSDP plugin of accelerate, version 1 and 2, in the keys of section fsdp. */
#include "import/fsdp.h"

#include <stdio.h>
#include <string.h>
#include <train/config.h>

struct scope {
    struct importer *im;
    const char *path; /* "fsdp_config" */
    const json_t *object;
    int version;
};

typedef void take_fsdp(const struct scope *s, const char *key, const json_t *value);

struct fsdp_row {
    const char *name; /* without "fsdp_" */
    take_fsdp *take;
    const char *instead; /* no function: said unless the value is false, "" or an empty list; NULL: never */
};

static bool is_off(const json_t *value)
{
    char word[64];
    import_word(value, word);
    return json_is_null(value) || json_is_false(value) || strcmp(word, "FALSE") == 0 || strcmp(word, "NO") == 0 ||
           (json_is_string(value) && !*json_string_value(value)) ||
           (json_is_integer(value) && !json_integer_value(value)) ||
           (json_is_array(value) && !json_array_size(value)) || (json_is_object(value) && !json_object_size(value));
}

static const char *const strategies[] = { "FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD",
                                          "HYBRID_SHARD_ZERO2" };
enum { NSTRATEGIES = sizeof strategies / sizeof strategies[0] };

/* The strategy of version 1: a name, or its number from 1. NULL: neither. */
static const char *strategy_of(const json_t *value)
{
    char word[64];
    json_int_t number = json_integer_value(value);
    import_word(value, word);
    if (json_is_string(value) && strlen(word) == 1 && word[0] >= '1' && word[0] <= '9')
        number = word[0] - '0';
    if (number >= 1 && number <= NSTRATEGIES)
        return strategies[number - 1];
    for (size_t i = 0; i < NSTRATEGIES; i++)
        if (strcmp(word[0] == '_' ? word + 1 : word, strategies[i]) == 0)
            return strategies[i];
    return NULL;
}

/* Member of parallelism_config, whose names may have a prefix; 1 if it is not there. */
static double mesh_size(const struct importer *im, const char *name)
{
    const json_t *object = import_get(im, "parallelism_config"), *value;
    char with_prefix[80];
    snprintf(with_prefix, sizeof with_prefix, "parallelism_config_%s", name);
    value = json_object_get(object, with_prefix);
    return import_number(value ? value : json_object_get(object, name), 1);
}

static void take_sharding(const struct scope *s, const char *key, const json_t *value)
{
    const char *name = strategy_of(value);
    bool off = is_off(value);
    if (s->version == 2 && (off || import_is_true(value)))
        name = mesh_size(s->im, "dp_replicate_size") > 1 ? (off ? "HYBRID_SHARD_ZERO2" : "HYBRID_SHARD")
                                                         : (off ? "SHARD_GRAD_OP" : "FULL_SHARD");
    if (!name)
        import_note(s->im, key, value, "%s; set fsdp.sharding_strategy",
                    s->version == 2 ? "FSDP2 takes true or false here" : "no strategy of FSDP1");
    else if (import_put(s->im, key, "fsdp.sharding_strategy", json_string(name)))
        import_taken(s->im, key);
}

/* Version 2 has both keys for some writers; reshard_after_forward counts. */
static void take_strategy(const struct scope *s, const char *key, const json_t *value)
{
    bool other =
        json_object_get(s->object, "fsdp_reshard_after_forward") || json_object_get(s->object, "reshard_after_forward");
    if (s->version == 2 && other)
        import_unneeded(s->im, key);
    else
        take_sharding(s, key, value);
}

static void take_checkpointing(const struct scope *s, const char *key, const json_t *value)
{
    if (is_off(value))
        import_put_weak(s->im, key, "fsdp.activation_checkpointing", json_string("none"));
    else
        import_put(s->im, key, "fsdp.activation_checkpointing", json_string("block"));
    import_taken(s->im, key);
}

/* BACKWARD_PRE gathers the next group before the gradients of this one; BACKWARD_POST only after them. */
static void take_backward_prefetch(const struct scope *s, const char *key, const json_t *value)
{
    char word[64];
    import_word(value, word);
    const bool pre = strcmp(word, "BACKWARD_PRE") == 0 || strcmp(word, "1") == 0 || json_integer_value(value) == 1;
    if (s->version == 2)
        import_unneeded(s->im, key);
    else if (import_put(s->im, key, "fsdp.backward_prefetch", json_integer(pre)))
        import_taken(s->im, key);
}

/* FSDP1 gathers a group ahead in any case: with true by order of the program, with false as far as the processor runs
 * ahead. */
static void take_forward_prefetch(const struct scope *s, const char *key, const json_t *value)
{
    (void)value;
    if (s->version == 2)
        import_unneeded(s->im, key);
    else if (import_put(s->im, key, "fsdp.forward_prefetch", json_integer(1)))
        import_taken(s->im, key);
}

static void take_state_dict(const struct scope *s, const char *key, const json_t *value)
{
    char word[64];
    import_word(value, word);
    if (strcmp(word, "SHARDED_STATE_DICT") == 0)
        import_unneeded(s->im, key);
    else
        import_note(s->im, key, value,
                    "checkpoints are sharded; a run exports the whole model or adapter at its end, and `fsdpck export` "
                    "does it for any checkpoint");
}

void import_put_offload(struct importer *im, const char *key, const json_t *value)
{
    import_put(im, key, "fsdp.offload", json_string("cpu"));
    import_put(im, key, "fsdp.offload_params", json_true());
    import_note(
        im, key, value,
        "fsdp.offload is \"cpu\": on GPUs the optimizer state and the parameters are in host memory, and "
        "fsdp.offload_gradients moves sums of gradients there too; ranks on processors hold everything in host memory, "
        "and a folder there moves it to a disk");
}

void import_offload(struct importer *im, const char *key, const json_t *value)
{
    if (is_off(value)) {
        import_unneeded(im, key);
        return;
    }
    import_put_offload(im, key, value);
    import_taken(im, key);
}

static void take_offload(const struct scope *s, const char *key, const json_t *value)
{
    import_offload(s->im, key, value);
}

static const json_t *member(const struct scope *s, const char *with_prefix)
{
    const json_t *value = json_object_get(s->object, with_prefix);
    return value ? value : json_object_get(s->object, with_prefix + strlen("fsdp_"));
}

/* The policy of the file. accelerate takes a size of 0 for no policy. */
static const char *policy_of(const struct scope *s, char word[64])
{
    const bool sized = import_number(member(s, "fsdp_min_num_params"), 0) > 0;
    import_word(member(s, "fsdp_auto_wrap_policy"), word);
    return strcmp(word, "SIZE_BASED_WRAP") == 0 && !sized ? "NO_WRAP" : word;
}

static void take_wrap(const struct scope *s, const char *key, const json_t *value)
{
    char word[64];
    const char *policy = policy_of(s, word);
    if (train_config_choice("fsdp.auto_wrap_policy", policy) < 0)
        import_note(s->im, key, value, "no policy of accelerate; set fsdp.auto_wrap_policy");
    else if (import_put(s->im, key, "fsdp.auto_wrap_policy", json_string(policy)))
        import_taken(s->im, key);
    if (strcmp(policy, "SIZE_BASED_WRAP") == 0)
        import_note(s->im, key, value,
                    "whole blocks are joined until a group has min_num_params parameters; no block is cut");
    else if (strcmp(import_word(value, word), "SIZE_BASED_WRAP") == 0)
        import_note(s->im, key, value,
                    "without min_num_params accelerate has no policy: all blocks are one group (NO_WRAP)");
}

static void take_min_params(const struct scope *s, const char *key, const json_t *value)
{
    char word[64];
    if (!*policy_of(s, word) && import_number(value, 0) > 0)
        import_note(s->im, key, value,
                    "transformers 4 wraps by this size, and others pass over it without a policy; for the former set "
                    "fsdp.auto_wrap_policy to SIZE_BASED_WRAP");
    else if (strcmp(policy_of(s, word), "SIZE_BASED_WRAP") != 0)
        import_unneeded(s->im, key);
    else if (import_put(s->im, key, "fsdp.min_num_params", json_deep_copy(value)))
        import_taken(s->im, key);
}

/* A list, or names with commas between them. Other policies do not look at it. */
static void take_classes(const struct scope *s, const char *key, const json_t *value)
{
    char word[64];
    json_t *list = json_is_string(value) ? json_array() : json_deep_copy(value);
    for (const char *at = json_string_value(value); at && *at; at += *at == ',') {
        at += strspn(at, " ");
        const size_t n = strcspn(at, ",");
        size_t end = n;
        while (end > 0 && at[end - 1] == ' ')
            end--;
        json_array_append_new(list, json_stringn(at, end));
        at += n;
    }
    policy_of(s, word);
    if (is_off(value) || strcmp(word, "SIZE_BASED_WRAP") == 0 || strcmp(word, "NO_WRAP") == 0) {
        json_decref(list);
        import_unneeded(s->im, key);
    } else if (import_put(s->im, key, "fsdp.transformer_layer_cls_to_wrap", list)) {
        import_taken(s->im, key);
    }
}

static const struct fsdp_row rows[] = {
    { "version", NULL, NULL },
    { "reshard_after_forward", take_sharding, NULL },
    { "sharding_strategy", take_strategy, NULL },
    { "activation_checkpointing", take_checkpointing, NULL },
    { "backward_prefetch", take_backward_prefetch, NULL },
    { "backward_prefetch_policy", take_backward_prefetch, NULL },
    { "forward_prefetch", take_forward_prefetch, NULL },
    { "state_dict_type", take_state_dict, NULL },
    { "auto_wrap_policy", take_wrap, NULL },
    { "transformer_layer_cls_to_wrap", take_classes, NULL },
    { "min_num_params", take_min_params, NULL },
    { "offload_params", take_offload, NULL },
    { "cpu_offload", take_offload, NULL },
    { "cpu_offload_pin_memory", NULL, NULL },
    { "activation_checkpointing_offload", NULL, "inputs of recomputed blocks stay on the device" },
    { "ignored_modules", NULL, "every parameter is sharded; lora.modules_to_save trains modules beside an adapter" },
    { "ignored_params", NULL, "every parameter is sharded; lora.modules_to_save trains modules beside an adapter" },
    { "use_orig_params", NULL, NULL },
    { "sync_module_states", NULL, NULL },
    { "cpu_ram_efficient_loading", NULL, NULL },
    { "limit_all_gathers", NULL, NULL },
    { "xla", NULL, "fsdptrain has no XLA; the other keys hold" },
    { "xla_fsdp_v2", NULL, "fsdptrain has no XLA; the other keys hold" },
    { "xla_fsdp_grad_ckpt", NULL, "fsdptrain has no XLA; set fsdp.activation_checkpointing" },
    { "xla_fsdp_settings", NULL, "fsdptrain has no XLA; the other keys hold" },
};

static void take_one(const struct scope *s, const char *name, const json_t *value)
{
    const char *plain = strncmp(name, "fsdp_", 5) == 0 ? name + 5 : name;
    const struct fsdp_row *row = NULL;
    char key[200];
    snprintf(key, sizeof key, "%.50s.%.140s", s->path, name);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0] && !row; i++)
        row = strcmp(rows[i].name, plain) == 0 ? &rows[i] : NULL;
    if (!row)
        import_note(s->im, key, value, "not a key of FSDP that is known; nothing is taken over for it");
    else if (row->take && !json_is_null(value))
        row->take(s, key, value);
    else if (row->instead && !is_off(value))
        import_note(s->im, key, value, "%s", row->instead);
    else
        import_unneeded(s->im, key);
}

void import_fsdp(struct importer *im, const char *path, const json_t *object, double version)
{
    const json_t *found = json_object_get(object, "fsdp_version");
    struct scope s = { .im = im, .path = path, .object = object };
    const char *name;
    json_t *value;
    version = import_number(found ? found : json_object_get(object, "version"), version);
    if (version != 1 && version != 2) {
        import_refuse(im, path, "version 1 or 2 of FSDP is wanted");
        return;
    }
    s.version = (int)version;
    if (json_object_size(object) == 0) {
        import_unneeded(im, path);
        return;
    }
    im->sharded = true;
    json_object_foreach ((json_t *)object, name, value)
        take_one(&s, name, value);
}

void import_fsdp1_config(struct importer *im, const char *key, const json_t *value)
{
    if (json_is_object(value))
        import_fsdp(im, key, value, 1);
    else
        import_refuse(im, key, "a mapping is wanted");
}

void import_fsdp2_config(struct importer *im, const char *key, const json_t *value)
{
    if (json_is_object(value))
        import_fsdp(im, key, value, 2);
    else
        import_note(im, key, value, "a file of its own: add its keys to this one under fsdp_config");
}

static void take_mesh(struct importer *im, const char *path, const char *name, const json_t *value)
{
    char to[80];
    snprintf(to, sizeof to, "fsdp.%.40s", name);
    if (strcmp(name, "dp_replicate_size") != 0 && strcmp(name, "dp_shard_size") != 0)
        import_note(im, path, value, "not a size of a mesh that is known; nothing is taken over for it");
    else if (import_put(im, path, to, json_deep_copy(value)))
        import_taken(im, path);
}

void import_parallelism_config(struct importer *im, const char *key, const json_t *object)
{
    const char *name;
    json_t *value;
    if (!json_is_object(object)) {
        import_refuse(im, key, "a mapping is wanted");
        return;
    }
    if (json_object_size(object) == 0)
        import_unneeded(im, key);
    json_object_foreach ((json_t *)object, name, value) {
        const char *plain = strncmp(name, "parallelism_config_", 19) == 0 ? name + 19 : name;
        const bool one = is_off(value) || import_number(value, 2) == 1;
        char path[200];
        snprintf(path, sizeof path, "%.50s.%.140s", key, name);
        if (!one && mesh_size(im, "dp_replicate_size") > 1 && strncmp(plain, "dp_", 3) == 0)
            take_mesh(im, path, plain, value);
        else if (strcmp(plain, "dp_shard_size") == 0 || one || strstr(plain, "_backend") || strstr(plain, "_strategy"))
            import_unneeded(im, path);
        else
            import_note(im, path, value,
                        "ranks share parameters and rows, and split no tensor and no sequence; set it to 1");
    }
}

void import_mixed_precision(struct importer *im, const char *key, const json_t *value, const char *word)
{
    if (strcmp(word, "NO") == 0 || strcmp(word, "FP32") == 0) {
        import_put_weak(im, key, "dtype.param", json_string("fp32"));
        import_taken(im, key);
    } else if (strcmp(word, "BF16") == 0) {
        import_put(im, key, "dtype.param", json_string("bf16"));
        import_put(im, key, "dtype.output", json_string("bf16"));
        import_taken(im, key);
    } else {
        import_note(im, key, value, "fsdptrain computes in bf16 or fp32; set dtype.param");
    }
}
