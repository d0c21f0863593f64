/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the checkpoint to resume from: the newest undamaged one. Damaged ones are named and set aside, so that their
 * steps can be saved again. */
#ifndef TRAIN_RESUME_H
#define TRAIN_RESUME_H

#include "rank/files.h"

/* Before the ranks part, by what can be told without reading payloads. *found: there is one to go on from, at path. One
 * that --resume names must do. */
int resume_choose(const struct job *job, char path[FILES_PATH], bool *found, struct fsdpck_error *err);
/* The state of the checkpoint at path (NULL: of none) over what rank_load left. Collective. Where a payload turns out
 * to be damaged on any rank, all of them take the newest whole one before it, or begin anew; not where --resume names
 * it. *saved: the step of a checkpoint in output_dir that was loaded, or 0. */
int resume_load(struct rank *r, const char *path, uint64_t *saved, struct fsdpck_error *err);

#endif
