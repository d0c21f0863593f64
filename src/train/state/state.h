/* SPDX-License-Identifier: Apache-2.0 */
/* The JSON state in checkpoints: the position of the run, and the settings that a resumed run must share. */
#ifndef TRAIN_STATE_H
#define TRAIN_STATE_H

#include "rank/rank.h"

char *state_write(const struct rank *r); /* owned; NULL: out of memory */
/* Hash of what the run takes from the model's config.json. */
uint64_t state_model_fingerprint(const struct job *job);
/* Hash of everything that must not differ between the ranks of a run. */
uint64_t state_fingerprint(const struct job *job);
struct settings_diff;
/* Lists the keys of the config's lora that differ from those of the checkpoint. */
void state_diff_lora(const struct job *job, const struct fsdpck_source *src, struct settings_diff *list);
/* Rejects a checkpoint of another run, naming each key that differs. Notes allowed differences (learning rate,
 * length). */
int state_check(const struct job *job, const struct fsdpck_source *src, struct fsdpck_error *err);
/* Checks that the loaded frozen base is the one that the checkpoint's adapters belong to. */
int state_check_base(const struct rank *r, const struct fsdpck_source *src, struct fsdpck_error *err);
/* The date in the run's data. Returns false if it has none. */
bool state_read_date(const struct fsdpck_source *src, char *date, size_t nbytes);
/* train.micro_batch_size of the run. Returns false if the checkpoint does not tell it. */
bool state_read_micro_batch(const struct fsdpck_source *src, uint64_t *nrows);
struct state_counts {
    uint64_t step, updates, last_update; /* as in struct rank */
};
int state_read_counts(const struct fsdpck_source *src, struct state_counts *counts, struct fsdpck_error *err);

#endif
