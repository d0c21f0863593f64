/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the objects of fsdp.policy. Their keys are rows of the key table, under the name of the object. Knows nothing
 * of the model: which groups an object matches is decided later. */
#include "config/policy_keys.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/mesh.h"

#define FAIL(...) fsdpck_error_set(err, FSDPCK_ERR_USAGE, path, __VA_ARGS__)

enum { NAME_NBYTES = 120 };

const struct config_key *config_policy_key(enum train_policy_key which)
{
    size_t i = 0;
    while (config_keys[i].policy != (int)which + 1)
        i++;
    return &config_keys[i];
}

const char *config_policy_name(enum train_policy_key which)
{
    const struct config_key *key = config_policy_key(which);
    return key->policy_name ? key->policy_name : strchr(key->name, '.') + 1;
}

/* The keys that an object may have, as "sharding_strategy, reshard_after_forward, …". */
static const char *list_keys(char text[400])
{
    size_t n = 0;
    for (int i = 0; i < TRAIN_POLICY_KEYS; i++)
        n += (size_t)snprintf(text + n, 400 - n, "%s%s", i ? ", " : "", config_policy_name((enum train_policy_key)i));
    return text;
}

static int put_modules(const char *path, const char *name, json_t *value, struct train_policy *out,
                       struct fsdpck_error *err)
{
    const struct config_key key = { .name = name,
                                    .type = KEY_NAMES,
                                    .offset = offsetof(struct train_config, lora.modules_to_save) };
    struct train_config scratch = { 0 };
    out->regex = json_string_value(value);
    if (out->regex ? !*out->regex : !json_array_size(value))
        return FAIL("key '%s': a list of module names, or a regular expression, is wanted", name);
    int rc = out->regex ? 0 : config_key_put(path, &key, value, &scratch, err);
    out->names = scratch.lora.modules_to_save;
    out->nnames = scratch.lora.nmodules_to_save;
    return rc;
}

static int refuse(const char *path, const char *name, const char *key, struct fsdpck_error *err)
{
    char all[400], row[NAME_NBYTES];
    snprintf(row, sizeof row, "fsdp.%.80s", key);
    if (strcmp(key, "output_dtype") == 0) {
        FAIL("key '%s': only logits are rounded, once for a run", name);
        fsdpck_error_hint(err, "dtype.output is the key of the whole run");
        return err->code;
    }
    if (config_key_find(row))
        return FAIL("key '%s': the value of %s is that of all groups; an object of fsdp.policy has modules, %s", name,
                    row, list_keys(all));
    return FAIL("unknown key '%s'; an object of fsdp.policy has modules, %s", name, list_keys(all));
}

static int put_key(const char *path, const char *object, const char *key, json_t *value, struct train_config *values,
                   struct train_policy *out, struct fsdpck_error *err)
{
    char name[NAME_NBYTES];
    snprintf(name, sizeof name, "%.30s.%.80s", object, key);
    if (strcmp(key, "modules") == 0)
        return put_modules(path, name, value, out, err);
    for (int i = 0; i < TRAIN_POLICY_KEYS; i++) {
        struct config_key row = *config_policy_key((enum train_policy_key)i);
        if (strcmp(key, config_policy_name((enum train_policy_key)i)) != 0)
            continue;
        if (config_key_is_auto(&row, value))
            return FAIL("key '%s': \"auto\" is chosen for all groups: write it at %s", name, row.name);
        row.name = name;
        out->given[i] = !json_is_null(value);
        return config_key_put(path, &row, value, values, err);
    }
    return refuse(path, name, key, err);
}

static int put_object(const char *path, size_t number, json_t *object, const struct train_config *c,
                      struct train_policy *out, struct fsdpck_error *err)
{
    struct train_config values = *c;
    char name[40], all[400];
    const char *key;
    json_t *value;
    int rc = 0, ngiven = 0;
    snprintf(name, sizeof name, "fsdp.policy[%zu]", number);
    if (!json_is_object(object))
        return FAIL("key '%s': an object is wanted", name);
    json_object_foreach (object, key, value) {
        if (!rc && strncmp(key, "//", 2) != 0)
            rc = put_key(path, name, key, value, &values, out, err);
    }
    for (int i = 0; i < TRAIN_POLICY_KEYS; i++)
        ngiven += out->given[i];
    if (!rc && !out->regex && !out->nnames)
        rc = FAIL("key '%s' has no modules: it matches no group", name);
    if (!rc && !ngiven)
        rc = FAIL("key '%s' says nothing of its groups; beside modules it may have %s", name, list_keys(all));
    out->strategy = values.fsdp.strategy;
    out->dp_replicate_size = values.fsdp.dp_replicate_size;
    out->dp_shard_size = values.fsdp.dp_shard_size;
    out->reshard_after_forward = values.fsdp.reshard_after_forward;
    out->wrap = values.fsdp.wrap;
    out->min_num_params = values.fsdp.min_num_params;
    out->forward_prefetch = values.fsdp.forward_prefetch;
    out->backward_prefetch = values.fsdp.backward_prefetch;
    out->checkpointing = values.fsdp.checkpointing;
    out->param_dtype = values.dtype.param;
    out->reduce_dtype = values.dtype.reduce;
    out->offload_optimizer = values.fsdp.offload_optimizer;
    return rc;
}

int config_policy_put(const char *path, json_t *value, struct train_config *c, struct fsdpck_error *err)
{
    const size_t n = json_array_size(value);
    if (!json_is_array(value))
        return FAIL("key 'fsdp.policy': a list of objects is wanted");
    struct train_policy *policy = calloc(n + 1, sizeof *policy);
    if (!policy)
        return fsdpck_error_nomem(err, n * sizeof *policy);
    c->fsdp.policy = policy;
    for (int rc; c->fsdp.npolicy < n;) {
        const size_t i = c->fsdp.npolicy++;
        rc = put_object(path, i, json_array_get(value, i), c, &policy[i], err);
        if (rc)
            return rc;
    }
    return 0;
}

/* Sizes without a strategy ask for replicas of shard groups. A strategy without sizes has those of fsdp only if it has
 * such replicas. */
static void replace_mesh(struct train_config *c, bool sizes)
{
    const bool stays = c->fsdp.strategy == TRAIN_SHARD_GRAD_OP || c->fsdp.strategy == TRAIN_HYBRID_SHARD_ZERO2;
    if (sizes)
        c->fsdp.strategy = stays ? TRAIN_HYBRID_SHARD_ZERO2 : TRAIN_HYBRID_SHARD;
    c->fsdp.dp_replicate_size = c->fsdp.dp_shard_size = 0;
}

struct train_config config_policy_over(const struct train_config *c, const struct train_policy *policy)
{
    const bool *given = policy->given;
    const bool sizes = given[TRAIN_POLICY_REPLICATE_SIZE] || given[TRAIN_POLICY_SHARD_SIZE];
    struct train_config out = *c;
    if (sizes || (given[TRAIN_POLICY_STRATEGY] && !mesh_is_hybrid(policy->strategy)))
        replace_mesh(&out, sizes);
#define TAKE(key, field) out.fsdp.field = given[TRAIN_POLICY_##key] ? policy->field : out.fsdp.field
    TAKE(STRATEGY, strategy);
    TAKE(REPLICATE_SIZE, dp_replicate_size);
    TAKE(SHARD_SIZE, dp_shard_size);
    TAKE(RESHARD, reshard_after_forward);
    TAKE(WRAP, wrap);
    TAKE(MIN_PARAMS, min_num_params);
    TAKE(FORWARD_PREFETCH, forward_prefetch);
    TAKE(BACKWARD_PREFETCH, backward_prefetch);
    TAKE(CHECKPOINTING, checkpointing);
    TAKE(OFFLOAD, offload_optimizer);
#undef TAKE
    if (given[TRAIN_POLICY_PARAM_DTYPE])
        out.dtype.param = policy->param_dtype;
    if (given[TRAIN_POLICY_REDUCE_DTYPE])
        out.dtype.reduce = policy->reduce_dtype;
    return out;
}

bool config_policy_strategies(const struct train_config *c)
{
    for (size_t i = 0; i < c->fsdp.npolicy; i++) {
        const bool *given = c->fsdp.policy[i].given;
        if (given[TRAIN_POLICY_STRATEGY] || given[TRAIN_POLICY_REPLICATE_SIZE] || given[TRAIN_POLICY_SHARD_SIZE])
            return true;
    }
    return false;
}
