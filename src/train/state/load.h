/* SPDX-License-Identifier: Apache-2.0 */
/* Loads weights into a rank before its first step. */
#ifndef TRAIN_LOAD_H
#define TRAIN_LOAD_H

#include "rank/rank.h"

/* Base weights from config.model, adapters from init_adapter or PEFT's distribution; only this rank's rows. */
int rank_load(struct rank *r, struct fsdpck_error *err);
/* The same over whatever state the rank has. */
int rank_start_anew(struct rank *r, struct fsdpck_error *err);

#endif
