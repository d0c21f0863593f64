/* SPDX-License-Identifier: Apache-2.0 */
/* The learning rate schedules that CONFIG.json names. */
#include "rank/schedule.h"

#include <math.h>

/* As in transformers: a ratio is rounded up. But at least one step keeps the full rate. */
uint64_t schedule_warmup(const struct train_config *config, uint64_t nsteps)
{
    uint64_t share = (uint64_t)ceil(config->train.warmup_ratio * (double)nsteps);
    if (config->train.warmup_given)
        return config->train.warmup_steps;
    return share < nsteps ? share : nsteps ? nsteps - 1 : 0;
}

double schedule_lr(const struct train_config *config, uint64_t step, uint64_t nsteps)
{
    const enum train_scheduler schedule = config->train.scheduler;
    double base = config->train.learning_rate, min = config->train.min_lr_ratio,
           warmup = (double)schedule_warmup(config, nsteps), at = (double)step;
    if (at < warmup)
        return base * (at / warmup);
    if (schedule == TRAIN_CONSTANT || schedule == TRAIN_CONSTANT_WITH_WARMUP)
        return base;
    double left = (double)nsteps - warmup, progress = (at - warmup) / (left > 1 ? left : 1), factor;
    if (schedule == TRAIN_COSINE || schedule == TRAIN_COSINE_WITH_MIN_LR)
        factor = 0.5 * (1 + cos(M_PI * 2 * 0.5 * progress));
    else
        factor = ((double)nsteps - at) / (left > 1 ? left : 1);
    factor = factor * (1 - min) + min;
    return base * (factor > 0 ? factor : 0);
}
