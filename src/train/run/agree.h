/* SPDX-License-Identifier: Apache-2.0 */
/* Checks before step 0 that all ranks have the same run and see the same output_dir. */
#ifndef TRAIN_AGREE_H
#define TRAIN_AGREE_H

#include "rank/rank.h"

/* Collective, before all else, for ranks of a launcher: checks that all run the same build. Its messages must not
 * change, so that other versions understand them. */
int agree_on_build(struct comm *comm, struct fsdpck_error *err);
/* Collective, before rank_open(): checks that all ranks have the same mesh. Its default depends on the host. */
int agree_on_mesh(struct comm *comm, const struct job *job, struct fsdpck_error *err);
/* Collective, before the ranks of a run on pictures encode them: checks that they see the same ones, and what each
 * other writes. */
int agree_on_encoding(struct comm *comm, const struct job *job, struct fsdpck_error *err);
/* Collective. resume: the checkpoint from which this rank will resume, or NULL. */
int agree(struct rank *r, const char *resume, struct fsdpck_error *err);

#endif
