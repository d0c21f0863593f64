/* SPDX-License-Identifier: Apache-2.0 */
/* Copies in memory of a run over several hosts (train_options.keeper). */
#ifndef TRAIN_KEPT_H
#define TRAIN_KEPT_H

#include "rank/job.h"

/* Collective, in the process of a rank. Opens the memory that the host keeps, and chooses the state to go on from: in
 * memory, if it is newer than the checkpoint `resume` (NULL: none). Fills job->recovery. If a host keeps no memory, a
 * note says so, and no rank makes copies. */
int kept_open(struct job *job, struct comm *comm, const char *resume, struct fsdpck_error *err);

#endif
