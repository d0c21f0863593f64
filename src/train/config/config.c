/* SPDX-License-Identifier: Apache-2.0 */
/* Reads CONFIG.json and --set, and checks rules that involve more than one key, which the key table cannot express. */
#include <train/config.h>

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/buckets.h"
#include "config/config_keys.h"
#include "config/idle.h"
#include "config/policy_keys.h"
#include "config/tenants.h"
#include "text/file.h"

/* "fsdp": "auto" stands for an object, to which --set may add keys. */
static void expand_auto(json_t *root)
{
    const char *word = json_string_value(json_object_get(root, "fsdp"));
    if (word && strcmp(word, "auto") == 0)
        json_object_set_new(root, "fsdp",
                            json_pack("{s:s, s:s, s:s, s:s}", "sharding_strategy", word, "forward_prefetch", word,
                                      "backward_prefetch", word, "activation_checkpointing", word));
}

/* Applies "train.max_steps=3" to the tree, and creates missing sections. */
static int apply_set(json_t *root, const char *set, struct fsdpck_error *err)
{
    const char *eq = strchr(set, '=');
    if (!eq || eq == set)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                                "--set %s: 'key=value' is wanted, as in train.max_steps=10", set);
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

/* Rejects a --set that overrides an earlier one or its section: the earlier one would have no effect. */
static int check_sets(const char *const *sets, size_t nsets, struct fsdpck_error *err)
{
    for (size_t i = 0; i < nsets; i++) {
        size_t n = strcspn(sets[i], "=");
        for (size_t k = 0; k < i; k++) {
            if (strncmp(sets[i], sets[k], n) == 0 && (sets[k][n] == '=' || sets[k][n] == '.'))
                return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                                        "--set %s: '--set %s' comes before it, and would have no effect", sets[i],
                                        sets[k]);
        }
    }
    return 0;
}

/* max_steps overrides num_train_epochs, as in transformers' TrainingArguments; warmup_steps overrides warmup_ratio. */
static void settle_length(struct train_config *c)
{
    const json_t *train = json_object_get(c->root, "train");
    if (json_object_get(train, "max_steps"))
        c->train.num_train_epochs = 0;
    c->train.warmup_given = json_object_get(train, "warmup_steps") != NULL;
}

/* The folder that fsdp.offload "auto" takes. */
static int settle_offload(struct train_config *c, struct fsdpck_error *err)
{
    if (!(c->automatic & TRAIN_AUTO_OFFLOAD) || !c->output_dir)
        return 0;
    const size_t n = strlen(c->output_dir) + 2;
    c->fsdp.offload_here = malloc(n);
    if (!c->fsdp.offload_here)
        return fsdpck_error_nomem(err, n);
    snprintf(c->fsdp.offload_here, n, "%s/", c->output_dir);
    return 0;
}

/* Sizes of a mesh without a strategy are FSDP2's way to ask for replicas of shard groups. Where the strategy is still
 * to be chosen, they exclude the others. */
static void settle_sharding(struct train_config *c)
{
    const bool given = json_object_get(json_object_get(c->root, "fsdp"), "sharding_strategy") != NULL;
    if ((!given || c->automatic & TRAIN_AUTO_STRATEGY) && (c->fsdp.dp_replicate_size || c->fsdp.dp_shard_size))
        c->fsdp.strategy = TRAIN_HYBRID_SHARD;
}

/* Buckets that are given have sizes of their own. */
static int settle_buckets(const char *path, struct train_config *c, struct fsdpck_error *err)
{
    if (!c->image.aspect_ratio_buckets)
        return 0;
    if (c->image.resolution.n > 1)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, path,
                                "keys 'image.resolution' and 'image.aspect_ratio_buckets': several resolutions are for "
                                "buckets that are computed");
    return config_buckets_read(path, c->image.aspect_ratio_buckets, &c->image.buckets, err);
}

/* PEFT's rules for adapters of parameters. */
static int check_parameters(const char *path, const struct train_lora_config *lora, struct fsdpck_error *err)
{
    const bool modules = lora->all_linear || lora->target_regex || lora->ntarget_names > 0;
    if (!lora->enabled)
        return 0;
    if (lora->ntarget_parameters && (lora->dropout > 0 || lora->use_dora))
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, path,
                                "keys 'lora.target_parameters' and 'lora.%s': an adapter of a parameter has no %s",
                                lora->use_dora ? "use_dora" : "lora_dropout", lora->use_dora ? "DoRA" : "dropout");
    if (!lora->ntarget_parameters && !modules)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, path,
                                "key 'lora.target_modules': a list of module names, a regular expression or "
                                "\"all-linear\" is wanted");
    return 0;
}

/* Checks rules that involve several keys. */
static int check_together(const char *path, const struct train_config *c, struct fsdpck_error *err)
{
    if (c->train.micro_batch_size > c->train.global_batch_size && !c->data.plan)
        return fsdpck_error_set(
            err, FSDPCK_ERR_USAGE, path, "train.micro_batch_size is %llu, more than train.global_batch_size, %llu",
            (unsigned long long)c->train.micro_batch_size, (unsigned long long)c->train.global_batch_size);
    if (c->sample.every && json_array_size(c->sample.prompts) == 0)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, path, "key 'sample.every' is %llu, and sample.prompts has none",
                                (unsigned long long)c->sample.every);
    for (size_t i = 0; c->data.plan && i < c->data.nfiles; i++) {
        if (c->data.nfiles > 1 || c->data.files[i].weight != 1)
            return fsdpck_error_set(err, FSDPCK_ERR_USAGE, path,
                                    "data.plan counts the lines of one file; data.train has several, or a weight");
    }
    return check_parameters(path, &c->lora, err);
}

int train_config_read(const char *path, const char *const *sets, size_t nsets, struct train_config *out,
                      struct fsdpck_error *err)
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
    for (size_t i = 0; i < nsets && json_is_object(root) && !rc; i++) {
        expand_auto(root); /* of the file, or of the --set before */
        rc = apply_set(root, sets[i], err);
    }
    if (!rc)
        return train_config_take(path, root, out, err);
    json_decref(root);
    return rc;
}

int train_config_take(const char *name, json_t *root, struct train_config *out, struct fsdpck_error *err)
{
    struct train_config c = { .root = root };
    config_keys_defaults(&c);
    expand_auto(root); /* of the tree, or of the last --set */
    int rc = json_is_object(root) ? config_keys_apply(name, &c, err)
                                  : fsdpck_error_set(err, FSDPCK_ERR_USAGE, name, "a JSON object is wanted");
    const json_t *fsdp = json_object_get(root, "fsdp");
    json_t *policy = rc ? NULL : json_object_get(fsdp, "policy");
    if (!rc && c.tenants)
        rc = tenants_expand(name, &c, err);
    if (!rc && policy)
        rc = config_policy_put(name, policy, &c, err);
    if (!rc) {
        settle_length(&c);
        settle_sharding(&c);
        rc = config_keys_required(name, &c, err);
        if (!rc)
            rc = settle_offload(&c, err);
        if (!rc)
            rc = settle_buckets(name, &c, err);
        if (!rc)
            rc = check_together(name, &c, err);
    }
    if (!rc && c.tenants)
        rc = tenants_check(&c, err);
    if (rc) {
        train_config_free(&c);
        c = (struct train_config){ 0 };
    }
    *out = c;
    return rc;
}

void train_config_idle(const struct train_config *config, const struct train_job_size *size,
                       void (*say)(void *ctx, const char *line), void *ctx)
{
    struct train_config defaults = { 0 };
    config_keys_defaults(&defaults);
    config_idle(config, &defaults, size, say, ctx);
}

int train_config_set_model(struct train_config *c, const char *folder, struct fsdpck_error *err)
{
    static const char index[] = "/model_index.json", part[] = "/transformer";
    const size_t nbytes = strlen(folder) + sizeof index;
    char *path = malloc(nbytes);
    if (!path)
        return fsdpck_error_nomem(err, nbytes);
    snprintf(path, nbytes, "%s%s", folder, index);
    const bool is_pipeline = access(path, F_OK) == 0;
    snprintf(path, nbytes, "%s%s", folder, part);
    free(c->transformer);
    c->transformer = path;
    c->pipeline = is_pipeline ? folder : NULL;
    c->model = is_pipeline ? path : folder;
    return 0;
}

void train_config_free(struct train_config *c)
{
    free(c->transformer);
    free((void *)c->lora.rank_pattern);
    free((void *)c->lora.alpha_pattern);
    free((void *)c->lora.target_names);
    free((void *)c->lora.target_parameters);
    free((void *)c->lora.modules_to_save);
    free((void *)c->fsdp.wrap_classes);
    free(c->fsdp.offload_here);
    for (size_t i = 0; i < c->fsdp.npolicy; i++)
        free((void *)c->fsdp.policy[i].names);
    free((void *)c->fsdp.policy);
    free((void *)c->data.files);
    free((void *)c->data.eval_files);
    if (c->root)
        json_decref(c->root);
    *c = (struct train_config){ 0 };
}
