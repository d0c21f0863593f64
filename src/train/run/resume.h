/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the checkpoint to resume from: the newest undamaged one. Damaged ones are named and set aside, so that their
 * steps can be saved again. */
#ifndef TRAIN_RESUME_H
#define TRAIN_RESUME_H

#include "rank/files.h"

/* Called before the ranks start; reads no payloads. *found: path is the checkpoint to resume from. If --resume names a
 * checkpoint, a damaged one is an error. */
int resume_choose(const struct job *job, char path[FILES_PATH], bool *found, struct fsdpck_error *err);
/* Before ranks start again. Finds the newest intact checkpoint in output_dir before step `below`. *step 0: none. */
int resume_find(const struct job *job, uint64_t below, char path[FILES_PATH], uint64_t *step, struct fsdpck_error *err);
/* Loads the checkpoint at path (NULL: none) over the state of rank_load(). Collective. If any rank finds a damaged
 * payload, all ranks load the newest intact checkpoint before it, or start anew; but if --resume names the checkpoint,
 * that is an error. After a loss, restores the chosen snapshot instead (job.recovery). *saved: the step of the loaded
 * checkpoint if it is in output_dir, or 0. */
int resume_load(struct rank *r, const char *path, uint64_t *saved, struct fsdpck_error *err);

#endif
