/* SPDX-License-Identifier: Apache-2.0 */
/* The reasons why a key has no effect in a run: one function per rule, which returns NULL if the key has an effect. */
#ifndef TRAIN_CONFIG_IDLE_H
#define TRAIN_CONFIG_IDLE_H

#include "config/config_keys.h"

typedef const char *idle_fn(const struct train_config *c, const struct train_job_size *size);

idle_fn idle_without_pictures, idle_beside_buckets, idle_with_pictures, idle_without_eval, idle_by_plan,
    idle_by_plan_of_steps, idle_beside_steps, idle_beside_warmup, idle_when_constant, idle_without_decay,
    idle_without_lora, idle_with_lora, idle_unless_gathered, idle_unless_sharded, idle_unless_full_shard,
    idle_unless_resharded, idle_unless_by_size, idle_offload, idle_unless_offloaded, idle_unless_buffered,
    idle_without_gradients, idle_until_asked, idle_unless_elastic, idle_wrap;

/* Reports each key of the config whose value differs from the default but has no effect. */
void config_idle(const struct train_config *c, const struct train_config *defaults, const struct train_job_size *size,
                 void (*say)(void *ctx, const char *line), void *ctx);

#endif
