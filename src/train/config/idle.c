/* SPDX-License-Identifier: Apache-2.0 */
/* Rules for keys that have no effect because of other keys. The key table names the rule of each key; a key without a
 * rule has an effect in every run. */
#include "config/idle.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "config/policy_keys.h"

/* True if the config contains the key with a value. */
static bool is_given(const struct train_config *c, const char *section, const char *key)
{
    const json_t *value = json_object_get(json_object_get(c->root, section), key);
    return value && !json_is_null(value);
}

const char *idle_without_pictures(const struct train_config *c, const struct train_job_size *size)
{
    (void)size;
    return c->pipeline ? NULL : "the model makes no pictures";
}

const char *idle_beside_buckets(const struct train_config *c, const struct train_job_size *size)
{
    return c->image.buckets.n ? "image.aspect_ratio_buckets is given, and counts" : idle_without_pictures(c, size);
}

const char *idle_with_pictures(const struct train_config *c, const struct train_job_size *size)
{
    (void)size;
    return c->pipeline ? "the model is trained on pictures" : NULL;
}

const char *idle_without_eval(const struct train_config *c, const struct train_job_size *size)
{
    (void)size;
    return c->data.eval ? NULL : "there is no data.eval";
}

/* These keys pack data.eval even if there is a plan. */
const char *idle_by_plan(const struct train_config *c, const struct train_job_size *size)
{
    if (c->pipeline)
        return idle_with_pictures(c, size);
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
    if (c->fsdp.offload_params && !idle_unless_buffered(c, size))
        return NULL;
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
    return c->fsdp.strategy == TRAIN_NO_SHARD && !config_policy_strategies(c)
               ? "fsdp.sharding_strategy is NO_SHARD: every rank has all parameters"
               : NULL;
}

/* Under an fsdp.policy, some groups may have another strategy. */
const char *idle_unless_full_shard(const struct train_config *c, const struct train_job_size *size)
{
    const char *unsharded = idle_unless_sharded(c, size);
    if (unsharded || c->fsdp.npolicy)
        return unsharded;
    if (c->fsdp.strategy == TRAIN_HYBRID_SHARD_ZERO2)
        return "fsdp.sharding_strategy is HYBRID_SHARD_ZERO2: it keeps parameters after the forward";
    return c->fsdp.strategy == TRAIN_SHARD_GRAD_OP
               ? "fsdp.sharding_strategy is SHARD_GRAD_OP: it keeps parameters after the forward"
               : NULL;
}

const char *idle_unless_resharded(const struct train_config *c, const struct train_job_size *size)
{
    const char *kept = idle_unless_full_shard(c, size);
    if (kept || c->fsdp.npolicy)
        return kept;
    return c->fsdp.reshard_after_forward
               ? NULL
               : "fsdp.reshard_after_forward is false: parameters stay in memory after the forward";
}

const char *idle_wrap(const struct train_config *c, const struct train_job_size *size)
{
    const bool cuts = c->fsdp.wrap == TRAIN_HALF_BLOCK_WRAP || c->fsdp.wrap == TRAIN_LINEAR_WRAP;
    return cuts && !c->lora.enabled ? NULL : idle_unless_sharded(c, size); /* gradients are exchanged by group */
}

const char *idle_unless_by_size(const struct train_config *c, const struct train_job_size *size)
{
    const char *unsharded = idle_unless_sharded(c, size);
    if (unsharded || c->fsdp.npolicy)
        return unsharded;
    return c->fsdp.wrap == TRAIN_SIZE_BASED_WRAP ? NULL : "fsdp.auto_wrap_policy is not SIZE_BASED_WRAP";
}

const char *idle_offload(const struct train_config *c, const struct train_job_size *size)
{
    return c->fsdp.offload && strcmp(c->fsdp.offload, "cpu") == 0 && !size->on_device
               ? "the optimizer state of ranks on processors is in host memory; a folder moves it to a file"
               : NULL;
}

const char *idle_unless_offloaded(const struct train_config *c, const struct train_job_size *size)
{
    (void)size;
    const bool folder = c->fsdp.offload && strcmp(c->fsdp.offload, "cpu") != 0;
    return folder || c->automatic & TRAIN_AUTO_OFFLOAD ? NULL : "fsdp.offload names no folder";
}

const char *idle_unless_buffered(const struct train_config *c, const struct train_job_size *size)
{
    return c->fsdp.offload && size->on_device ? NULL : idle_unless_offloaded(c, size);
}

const char *idle_without_gradients(const struct train_config *c, const struct train_job_size *size)
{
    if (c->lora.enabled && c->lora.nmodules_to_save == 0)
        return "an adapter is trained: its gradients are small, and stay in memory";
    return idle_unless_buffered(c, size);
}

const char *idle_until_asked(const struct train_config *c, const struct train_job_size *size)
{
    (void)size;
    return c->sample.every ? NULL : "sample.every is 0: only `echo sample > OUTPUT_DIR/control` asks for them";
}

const char *idle_unless_elastic(const struct train_config *c, const struct train_job_size *size)
{
    if (!size->elastic)
        return "the run ends with the loss of a rank: --elastic is not given";
    if (c->automatic & TRAIN_AUTO_OFFLOAD) /* it may move nothing */
        return NULL;
    return idle_unless_buffered(c, size) ? NULL : "fsdp.offload has the state: a run goes on from a checkpoint";
}

/* --- which of them to report --- */

static bool is_default(const struct config_key *key, const struct train_config *c, const struct train_config *defaults)
{
    const char *at = (const char *)c + key->offset, *default_value = (const char *)defaults + key->offset;
    switch (key->type) {
    case KEY_BOOL: return *(const bool *)at == *(const bool *)default_value;
    case KEY_U64:
    case KEY_SWITCH: return *(const uint64_t *)at == *(const uint64_t *)default_value;
    case KEY_NUMBER: return *(const double *)at == *(const double *)default_value;
    case KEY_CHOICE: return *(const unsigned *)at == *(const unsigned *)default_value;
    case KEY_STRING: {
        const char *a = *(const char *const *)at, *b = *(const char *const *)default_value;
        return a == b || (a && b && strcmp(a, b) == 0);
    }
    default: return false;
    }
}

/* Reports the keys in the objects of fsdp.policy. */
static void report_policy(const struct train_config *c, const struct train_job_size *size,
                          void (*say)(void *ctx, const char *line), void *ctx)
{
    char line[512];
    for (size_t i = 0; i < c->fsdp.npolicy; i++) {
        const struct train_policy *policy = &c->fsdp.policy[i];
        const struct train_config values = config_policy_over(c, policy);
        for (int k = 0; k < TRAIN_POLICY_KEYS; k++) {
            const struct config_key *key = config_policy_key((enum train_policy_key)k);
            const char *why = policy->given[k] && key->idle ? key->idle(&values, size) : NULL;
            if (!why)
                continue;
            snprintf(line, sizeof line, "key 'fsdp.policy[%zu].%s' has no effect: %s", i,
                     config_policy_name((enum train_policy_key)k), why);
            say(ctx, line);
        }
    }
}

void config_idle(const struct train_config *c, const struct train_config *defaults, const struct train_job_size *size,
                 void (*say)(void *ctx, const char *line), void *ctx)
{
    char line[512], section[64];
    report_policy(c, size, say, ctx);
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
