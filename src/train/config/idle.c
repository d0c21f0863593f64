/* SPDX-License-Identifier: Apache-2.0 */
/* Rules for keys that have no effect because of other keys. The key table names the rule of each key; a key without a
 * rule has an effect in every run. */
#include "config/idle.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

/* True if the config contains the key with a value. */
static bool is_given(const struct train_config *c, const char *section, const char *key)
{
    const json_t *value = json_object_get(json_object_get(c->root, section), key);
    return value && !json_is_null(value);
}

const char *idle_without_eval(const struct train_config *c, const struct train_job_size *size)
{
    (void)size;
    return c->data.eval ? NULL : "there is no data.eval";
}

/* These keys pack data.eval even if there is a plan. */
const char *idle_by_plan(const struct train_config *c, const struct train_job_size *size)
{
    (void)size;
    return c->data.plan && !c->data.eval ? "data.plan names the rows of every micro-batch" : NULL;
}

const char *idle_by_plan_of_steps(const struct train_config *c, const struct train_job_size *size)
{
    (void)size;
    return c->data.plan ? "data.plan names the micro-batches of every step" : NULL;
}

const char *idle_beside_steps(const struct train_config *c, const struct train_job_size *size)
{
    (void)size;
    return is_given(c, "train", "max_steps") ? "train.max_steps is given too, and counts" : NULL;
}

const char *idle_beside_warmup(const struct train_config *c, const struct train_job_size *size)
{
    (void)size;
    return c->train.warmup_given ? "train.warmup_steps is given too, and counts" : NULL;
}

const char *idle_when_constant(const struct train_config *c, const struct train_job_size *size)
{
    (void)size;
    return c->train.scheduler == TRAIN_CONSTANT || c->train.scheduler == TRAIN_CONSTANT_WITH_WARMUP
               ? "train.lr_scheduler_type is constant: the rate does not fall"
               : NULL;
}

const char *idle_without_decay(const struct train_config *c, const struct train_job_size *size)
{
    (void)size;
    return c->train.weight_decay > 0 ? NULL : "train.weight_decay is 0";
}

const char *idle_without_lora(const struct train_config *c, const struct train_job_size *size)
{
    (void)size;
    return c->lora.enabled ? NULL : "the whole model is trained: there is no adapter";
}

const char *idle_with_lora(const struct train_config *c, const struct train_job_size *size)
{
    (void)size;
    return c->lora.enabled ? "an adapter is trained: checkpoint.export_adapter writes it" : NULL;
}

const char *idle_unless_gathered(const struct train_config *c, const struct train_job_size *size)
{
    (void)c;
    if (size->nranks < 2)
        return "there is one rank: it has all parameters";
    return size->copies ? NULL
                        : "ranks of one host map each other's parameters: nothing is gathered (--gather copy gathers)";
}

const char *idle_unless_sharded(const struct train_config *c, const struct train_job_size *size)
{
    const char *mapped = idle_unless_gathered(c, size);
    if (mapped)
        return mapped;
    return c->fsdp.strategy == TRAIN_NO_SHARD
               ? "fsdp.sharding_strategy is NO_SHARD: parameters are gathered once a step"
               : NULL;
}

const char *idle_unless_full_shard(const struct train_config *c, const struct train_job_size *size)
{
    const char *unsharded = idle_unless_sharded(c, size);
    if (unsharded)
        return unsharded;
    return c->fsdp.strategy == TRAIN_SHARD_GRAD_OP
               ? "fsdp.sharding_strategy is SHARD_GRAD_OP: it keeps parameters after the forward"
               : NULL;
}

const char *idle_until_asked(const struct train_config *c, const struct train_job_size *size)
{
    (void)size;
    return c->sample.every ? NULL : "sample.every is 0: only `echo sample > OUTPUT_DIR/control` asks for them";
}

/* --- which of them to report --- */

static bool is_default(const struct config_key *key, const struct train_config *c, const struct train_config *defaults)
{
    const char *at = (const char *)c + key->offset, *usual = (const char *)defaults + key->offset;
    switch (key->type) {
    case KEY_BOOL: return *(const bool *)at == *(const bool *)usual;
    case KEY_U64: return *(const uint64_t *)at == *(const uint64_t *)usual;
    case KEY_NUMBER: return *(const double *)at == *(const double *)usual;
    case KEY_CHOICE: return *(const unsigned *)at == *(const unsigned *)usual;
    case KEY_STRING: {
        const char *a = *(const char *const *)at, *b = *(const char *const *)usual;
        return a == b || (a && b && strcmp(a, b) == 0);
    }
    default: return false;
    }
}

void config_idle(const struct train_config *c, const struct train_config *defaults, const struct train_job_size *size,
                 void (*say)(void *ctx, const char *line), void *ctx)
{
    char line[512], section[64];
    for (size_t i = 0; i < config_nkeys; i++) {
        const char *dot = strchr(config_keys[i].name, '.');
        const char *why = config_keys[i].idle ? config_keys[i].idle(c, size) : NULL;
        if (!why || !dot)
            continue;
        snprintf(section, sizeof section, "%.*s", (int)(dot - config_keys[i].name), config_keys[i].name);
        /* Next to max_steps, settle_length() has reset num_train_epochs to its default. */
        if (!is_given(c, section, dot + 1) ||
            (is_default(&config_keys[i], c, defaults) && config_keys[i].idle != idle_beside_steps))
            continue;
        snprintf(line, sizeof line, "key '%s' has no effect: %s", config_keys[i].name, why);
        say(ctx, line);
    }
}
