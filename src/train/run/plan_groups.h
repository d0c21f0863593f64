/* SPDX-License-Identifier: Apache-2.0 */
/* The groups of parameters that are gathered together, for `plan`. */
#ifndef TRAIN_PLAN_GROUPS_H
#define TRAIN_PLAN_GROUPS_H

#include "rank/job.h"

/* Writes what `plan` calls the groups first … last, which are gathered together. */
void plan_groups_name(const struct layout *l, uint32_t first, uint32_t last, char name[64]);
/* Fills out->groups. c: with the blocks to be recomputed. linked: the ranks' devices are linked. */
int plan_groups(const struct job *job, const struct compute *c, bool linked, struct train_plan *out,
                struct fsdpck_error *err);

#endif
