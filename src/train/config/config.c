/* The key table of CONFIG.json: types, ranges, choices, and what a later version will know. The README describes them. */
#include <train/config.h>

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "config/config_keys.h"
#include "config/idle.h"
#include "text/file.h"

#define AT(field) offsetof(struct train_config, field)

static const struct config_key keys[] = {
    { .name = "model", .type = KEY_STRING, .offset = AT(model) },
    { .name = "output_dir", .type = KEY_STRING, .offset = AT(output_dir) },
    { .name = "seed", .type = KEY_U64, .offset = AT(seed), .max = 9007199254740992.0 },
    { .name = "data.train", .type = KEY_FILES, .offset = AT(data.train) },
    { .name = "data.eval", .type = KEY_FILES, .offset = AT(data.eval), .nullable = true },
    { .name = "data.seq_len", .type = KEY_U64, .offset = AT(data.seq_len), .min = 1, .max = 1 << 24, .idle = idle_by_plan },
    { .name = "data.packing", .type = KEY_BOOL, .offset = AT(data.packing), .idle = idle_by_plan },
    { .name = "data.plan", .type = KEY_STRING, .offset = AT(data.plan), .nullable = true },
    { .name = "data.loss_on", .type = KEY_CHOICE, .offset = AT(data.loss_on), .choices = "assistant|last_assistant|completion|all" },
    { .name = "data.columns", .type = KEY_COLUMNS, .offset = AT(data.columns), .nullable = true },
    { .name = "data.date", .type = KEY_STRING, .offset = AT(data.date), .nullable = true },
    { .name = "data.on_bad_line", .type = KEY_CHOICE, .offset = AT(data.on_bad_line), .choices = "stop|skip" },
    { .name = "data.too_long", .type = KEY_CHOICE, .offset = AT(data.too_long), .choices = "cut|drop", .idle = idle_by_plan },
    { .name = "lora.r", .type = KEY_U64, .offset = AT(lora.r), .min = 1, .max = 65536 },
    { .name = "lora.lora_alpha", .type = KEY_NUMBER, .offset = AT(lora.alpha), .min = -1e30, .max = 1e30 },
    { .name = "lora.lora_dropout", .type = KEY_NUMBER, .offset = AT(lora.dropout), .max = 0.999 },
    { .name = "lora.target_modules", .type = KEY_TARGETS },
    { .name = "lora.use_rslora", .type = KEY_BOOL, .offset = AT(lora.use_rslora) },
    { .name = "lora.use_dora", .type = KEY_BOOL, .offset = AT(lora.use_dora) },
    { .name = "lora.rank_pattern", .type = KEY_PATTERNS, .offset = AT(lora.rank_pattern), .min = 1, .max = 65536, .whole = true },
    { .name = "lora.alpha_pattern", .type = KEY_PATTERNS, .offset = AT(lora.alpha_pattern), .min = -1e30, .max = 1e30 },
    { .name = "lora.modules_to_save", .type = KEY_NAMES, .offset = AT(lora.modules_to_save), .nullable = true },
    { .name = "lora.init_adapter", .type = KEY_STRING, .offset = AT(lora.init_adapter), .nullable = true },
    { .name = "train.max_steps", .type = KEY_U64, .offset = AT(train.max_steps), .min = 1, .max = 1e12 },
    { .name = "train.num_train_epochs", .type = KEY_NUMBER, .offset = AT(train.num_train_epochs), .nullable = true, .min = 1e-9, .max = 1e9, .idle = idle_beside_steps },
    { .name = "train.micro_batch_size", .type = KEY_U64, .offset = AT(train.micro_batch_size), .min = 1, .max = 1 << 20, .idle = idle_by_plan },
    { .name = "train.gradient_accumulation_steps", .type = KEY_U64, .offset = AT(train.accumulation), .min = 1, .max = 1 << 20 },
    { .name = "train.global_batch_size", .type = KEY_U64, .offset = AT(train.global_batch_size), .min = 1, .max = 1 << 24, .idle = idle_by_plan_of_steps },
    { .name = "train.eval_steps", .type = KEY_U64, .offset = AT(train.eval_steps), .max = 1e12, .idle = idle_without_eval },
    { .name = "train.learning_rate", .type = KEY_NUMBER, .offset = AT(train.learning_rate), .max = 1e6 },
    { .name = "train.lr_scheduler_type", .type = KEY_CHOICE, .offset = AT(train.scheduler), .choices = "cosine|linear|constant",
      .also = "constant_with_warmup|cosine_with_min_lr" },
    { .name = "train.warmup_steps", .type = KEY_U64, .offset = AT(train.warmup_steps), .max = 1e12 },
    { .name = "train.warmup_ratio", .type = KEY_NUMBER, .offset = AT(train.warmup_ratio), .max = 1, .idle = idle_beside_warmup },
    { .name = "train.min_lr_ratio", .type = KEY_NUMBER, .offset = AT(train.min_lr_ratio), .max = 1, .idle = idle_when_constant },
    { .name = "train.adam_beta1", .type = KEY_NUMBER, .offset = AT(train.beta1), .max = 0.9999999999 },
    { .name = "train.adam_beta2", .type = KEY_NUMBER, .offset = AT(train.beta2), .max = 0.9999999999 },
    { .name = "train.adam_epsilon", .type = KEY_NUMBER, .offset = AT(train.epsilon), .max = 1 },
    { .name = "train.weight_decay", .type = KEY_NUMBER, .offset = AT(train.weight_decay), .max = 1e6 },
    { .name = "train.weight_decay_on", .type = KEY_CHOICE, .offset = AT(train.weight_decay_on), .choices = "matrices|all", .idle = idle_without_decay },
    { .name = "train.max_grad_norm", .type = KEY_NUMBER, .offset = AT(train.max_grad_norm), .nullable = true, .max = 1e30 },
    { .name = "train.on_nonfinite", .type = KEY_CHOICE, .offset = AT(train.on_nonfinite), .choices = "stop|skip" },
    { .name = "fsdp.sharding_strategy", .type = KEY_CHOICE, .offset = AT(fsdp.strategy), .choices = "FULL_SHARD|SHARD_GRAD_OP|NO_SHARD",
      .later = "HYBRID_SHARD|HYBRID_SHARD_ZERO2", .idle = idle_unless_gathered },
    { .name = "fsdp.reshard_after_forward", .type = KEY_BOOL, .offset = AT(fsdp.reshard_after_forward), .idle = idle_unless_full_shard },
    { .name = "fsdp.forward_prefetch", .type = KEY_U64, .offset = AT(fsdp.forward_prefetch), .max = 1024, .idle = idle_unless_sharded },
    { .name = "fsdp.backward_prefetch", .type = KEY_U64, .offset = AT(fsdp.backward_prefetch), .max = 1024, .idle = idle_unless_sharded },
    { .name = "fsdp.activation_checkpointing", .type = KEY_CHOICE, .offset = AT(fsdp.checkpointing), .choices = "none|block|auto" },
    { .name = "fsdp.reduction", .type = KEY_CHOICE, .offset = AT(fsdp.reduction), .choices = "invariant", .later = "fast" },
    { .name = "dtype.param", .type = KEY_CHOICE, .offset = AT(dtype.param), .choices = "bf16|fp32", .later = "fp16" },
    { .name = "dtype.reduce", .type = KEY_CHOICE, .offset = AT(dtype.reduce), .choices = "bf16|fp32", .later = "fp16" },
    { .name = "dtype.output", .type = KEY_CHOICE, .offset = AT(dtype.output), .choices = "bf16|fp32", .later = "fp16" },
    { .name = "checkpoint.save_steps", .type = KEY_U64, .offset = AT(checkpoint.save_steps), .max = 1e12 },
    { .name = "checkpoint.keep_last", .type = KEY_U64, .offset = AT(checkpoint.keep_last), .max = 1e9 },
    { .name = "checkpoint.export_adapter", .type = KEY_BOOL, .offset = AT(checkpoint.export_adapter), .idle = idle_without_lora },
    { .name = "checkpoint.export_model", .type = KEY_BOOL, .offset = AT(checkpoint.export_model), .idle = idle_with_lora },
    { .name = "sample.every", .type = KEY_U64, .offset = AT(sample.every), .max = 1e12 },
    { .name = "sample.prompts", .type = KEY_PROMPTS, .offset = AT(sample.prompts), .idle = idle_until_asked },
    { .name = "log.every", .type = KEY_U64, .offset = AT(log.every), .min = 1, .max = 1e9 },
    { .name = "log.jsonl", .type = KEY_STRING, .offset = AT(log.jsonl) },
};
enum { NKEYS = sizeof keys / sizeof keys[0] };

static void set_defaults(struct train_config *c)
{
    c->output_dir = "runs/first";
    c->seed = 42;
    c->data.loss_on = "assistant";
    c->data.on_bad_line = "stop";
    c->data.too_long = "cut";
    c->data.seq_len = 2048;
    c->data.packing = true;
    c->lora.r = 16;
    c->lora.alpha = 32;
    c->lora.all_linear = true;
    c->train.max_steps = 200;
    c->train.eval_steps = 100;
    c->train.micro_batch_size = c->train.accumulation = 1;
    c->train.global_batch_size = 8;
    c->train.learning_rate = 2e-4;
    c->train.scheduler = "cosine";
    c->train.warmup_ratio = 0.05;
    c->train.beta1 = 0.9;
    c->train.beta2 = 0.999;
    c->train.epsilon = 1e-8;
    c->train.weight_decay_on = "matrices";
    c->train.max_grad_norm = 1.0;
    c->train.on_nonfinite = "stop";
    c->fsdp.strategy = "FULL_SHARD";
    c->fsdp.checkpointing = "none";
    c->fsdp.reduction = "invariant";
    c->fsdp.reshard_after_forward = true;
    c->fsdp.forward_prefetch = c->fsdp.backward_prefetch = 1;
    c->dtype.param = "bf16";
    c->dtype.reduce = c->dtype.output = "fp32";
    c->checkpoint.save_steps = 100;
    c->checkpoint.keep_last = 3;
    c->checkpoint.export_adapter = true;
    c->checkpoint.export_model = true;
    c->log.every = 1;
    c->log.jsonl = "metrics.jsonl";
}

/* "train.max_steps=3": into the tree, making the sections it lacks. */
static int apply_set(json_t *root, const char *set, struct fsdpck_error *err)
{
    const char *eq = strchr(set, '=');
    if (!eq || eq == set)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "--set %s: 'key=value' is wanted, as in train.max_steps=10", set);
    json_t *value = json_loads(eq + 1, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);
    if (!value)
        value = json_string(eq + 1);
    const char *at = set;
    for (const char *dot; (dot = memchr(at, '.', (size_t)(eq - at))) != NULL; at = dot + 1) {
        json_t *next = json_object_getn(root, at, (size_t)(dot - at));
        if (!json_is_object(next)) {
            next = json_object();
            json_object_setn_new(root, at, (size_t)(dot - at), next);
        }
        root = next;
    }
    if (!value || !root || json_object_setn_new(root, at, (size_t)(eq - at), value))
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "--set %s: neither JSON nor text in UTF-8", set);
    return 0;
}

/* One value a key: a later --set that takes the place of an earlier one, or of the section around it, would hide it. */
static int check_sets(const char *const *sets, size_t nsets, struct fsdpck_error *err)
{
    for (size_t i = 0; i < nsets; i++) {
        size_t n = strcspn(sets[i], "=");
        for (size_t k = 0; k < i; k++) {
            if (strncmp(sets[i], sets[k], n) == 0 && (sets[k][n] == '=' || sets[k][n] == '.'))
                return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "--set %s: '--set %s' comes before it, and would have no effect", sets[i], sets[k]);
        }
    }
    return 0;
}

/* Of both, max_steps counts, as in transformers' TrainingArguments; and warmup_steps. */
static void settle_length(struct train_config *c)
{
    const json_t *train = json_object_get(c->root, "train");
    if (json_object_get(train, "max_steps"))
        c->train.num_train_epochs = 0;
    c->train.warmup_given = json_object_get(train, "warmup_steps") != NULL;
}

static int check_required(const char *path, const struct train_config *c, struct fsdpck_error *err)
{
    const char *missing = !c->model ? "model" : !c->data.train ? "data.train" : NULL;
    if (missing)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, path, "key '%s' is missing; it has no default", missing);
    if (c->train.micro_batch_size > c->train.global_batch_size && !c->data.plan)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, path, "train.micro_batch_size is %llu, more than train.global_batch_size, %llu",
                                (unsigned long long)c->train.micro_batch_size, (unsigned long long)c->train.global_batch_size);
    if (c->sample.every && json_array_size(c->sample.prompts) == 0)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, path, "key 'sample.every' is %llu, and sample.prompts has none", (unsigned long long)c->sample.every);
    for (size_t i = 0; c->data.plan && i < c->data.nfiles; i++) {
        if (c->data.nfiles > 1 || c->data.files[i].weight != 1)
            return fsdpck_error_set(err, FSDPCK_ERR_USAGE, path, "data.plan counts the lines of one file; data.train has several, or a weight");
    }
    return 0;
}

int train_config_read(const char *path, const char *const *sets, size_t nsets, struct train_config *out, struct fsdpck_error *err)
{
    struct fsdpck_error why = { 0 };
    json_t *root;
    int rc = text_file_json(path, &root, &why);
    *out = (struct train_config){ 0 };
    if (rc) {
        rc = fsdpck_error_set(err, rc == FSDPCK_ERR_NOMEM ? rc : FSDPCK_ERR_USAGE, path, "%s", why.message);
        if (why.hint[0])
            fsdpck_error_hint(err, "%s", why.hint);
        return rc;
    }
    rc = check_sets(sets, nsets, err);
    for (size_t i = 0; i < nsets && json_is_object(root) && !rc; i++)
        rc = apply_set(root, sets[i], err);
    if (!rc)
        return train_config_take(path, root, out, err);
    json_decref(root);
    return rc;
}

int train_config_take(const char *name, json_t *root, struct train_config *out, struct fsdpck_error *err)
{
    struct train_config c = { .root = root };
    set_defaults(&c);
    int rc = json_is_object(root) ? config_keys_apply(name, keys, NKEYS, &c, err) : fsdpck_error_set(err, FSDPCK_ERR_USAGE, name, "a JSON object is wanted");
    if (!rc) {
        settle_length(&c);
        rc = check_required(name, &c, err);
    }
    if (rc) {
        train_config_free(&c);
        c = (struct train_config){ 0 };
    }
    *out = c;
    return rc;
}

void train_config_idle(const struct train_config *config, const struct train_place *place, void (*say)(void *ctx, const char *line), void *ctx)
{
    struct train_config defaults = { 0 };
    set_defaults(&defaults);
    config_idle(keys, NKEYS, config, &defaults, place, say, ctx);
}

void train_config_free(struct train_config *c)
{
    free((void *)c->lora.rank_pattern);
    free((void *)c->lora.alpha_pattern);
    free((void *)c->lora.target_names);
    free((void *)c->lora.modules_to_save);
    free((void *)c->data.files);
    free((void *)c->data.eval_files);
    if (c->root)
        json_decref(c->root);
    *c = (struct train_config){ 0 };
}
