/* SPDX-License-Identifier: Apache-2.0 */
/* Prints notes on suspicious settings before a run starts. */
#ifndef TRAIN_WARN_H
#define TRAIN_WARN_H

#include "rank/rank.h"

/* Only the process with rank 0 prints notes. */
void job_warn(const struct job *job);

#endif
