/* SPDX-License-Identifier: Apache-2.0 */
/* The learning rate of each step. */
#ifndef TRAIN_LR_SCHEDULE_H
#define TRAIN_LR_SCHEDULE_H

#include <train/config.h>

/* Number of warm-up steps, in which the learning rate rises to its value. */
uint64_t schedule_warmup(const struct train_config *config, uint64_t nsteps);
double schedule_lr(const struct train_config *config, uint64_t step, uint64_t nsteps);

#endif
