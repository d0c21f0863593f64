/* SPDX-License-Identifier: Apache-2.0 */
/* The model card of an adapter: README.md as PEFT writes one, filled in from the run. */
#ifndef TRAIN_CARD_H
#define TRAIN_CARD_H

#include "rank/rank.h"

/* Writes README.md into `folder`. If `old`, the previous adapter folder, has a README that the user wrote, copies it;
 * otherwise writes the card of `step`. */
int card_write(const struct job *job, uint64_t step, const char *folder, const char *old, struct fsdpck_error *err);

#endif
