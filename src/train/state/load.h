/* SPDX-License-Identifier: Apache-2.0 */
/* Loads weights into a rank before its first step. */
#ifndef TRAIN_LOAD_H
#define TRAIN_LOAD_H

#include "rank/rank.h"

/* Loads this rank's rows: base weights from config.model, adapters from init_adapter or from PEFT's distribution.
 * only_frozen: leaves out trained parameters, because the caller loads a checkpoint or a snapshot next. */
int rank_load(struct rank *r, bool only_frozen, struct fsdpck_error *err);
/* The same for all tenants of the rank: the base once, and the adapter of each. only_frozen: (job->ntenants) */
int rank_load_tenants(struct rank *r, const bool *only_frozen, struct fsdpck_error *err);
/* An adapter alone, beside a base that is loaded (rank/beside.h). */
int rank_load_beside(const struct rank *base, struct rank *r, bool only_frozen, struct fsdpck_error *err);
/* As rank_load() of all parameters, but overwrites any state of the rank. */
int rank_start_anew(struct rank *r, struct fsdpck_error *err);

#endif
