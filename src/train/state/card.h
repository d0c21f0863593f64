/* SPDX-License-Identifier: Apache-2.0 */
/* The model card of an adapter: README.md as PEFT writes one, filled in from the run. */
#ifndef TRAIN_CARD_H
#define TRAIN_CARD_H

#include "rank/rank.h"

/* README.md into `folder`: what `old`, the adapter's folder until now, has there where somebody else wrote it, else our
 * own of `step`. */
int card_write(const struct job *job, uint64_t step, const char *folder, const char *old, struct fsdpck_error *err);

#endif
