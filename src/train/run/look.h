/* SPDX-License-Identifier: Apache-2.0 */
/* Prints notes on suspicious settings before a run starts. */
#ifndef TRAIN_LOOK_H
#define TRAIN_LOOK_H

#include "rank/rank.h"

/* Notes of the process with rank 0. */
void job_look(const struct job *job);

#endif
