/* SPDX-License-Identifier: Apache-2.0 */
/* The JSON state in checkpoints: the position of the run, and the settings that a resumed run must share. */
#ifndef TRAIN_STATE_H
#define TRAIN_STATE_H

#include "rank/rank.h"

char *state_write(const struct rank *r); /* owned; NULL: no memory */
/* Of all that must not differ between the ranks of a run. */
uint64_t state_fingerprint(const struct job *job);
struct settings_diff;
/* Adds the keys of the config's lora that differ from the checkpoint's. */
void state_tell_lora(const struct job *job, const struct fsdpck_source *src, struct settings_diff *list);
/* Refuses, key by key, what would make it another run; differences that are allowed (learning rate, length) are noted.
 */
int state_check(const struct job *job, const struct fsdpck_source *src, struct fsdpck_error *err);
/* The frozen base that was loaded is the one that the checkpoint's adapters belong to. */
int state_check_base(const struct rank *r, const struct fsdpck_source *src, struct fsdpck_error *err);
/* The day that its data shows; false: none. */
bool state_read_date(const struct fsdpck_source *src, char *date, size_t nbytes);
struct state_counts {
    uint64_t step, updates, last_update; /* as of struct rank */
};
int state_read_counts(const struct fsdpck_source *src, struct state_counts *counts, struct fsdpck_error *err);

#endif
