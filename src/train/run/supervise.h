/* SPDX-License-Identifier: Apache-2.0 */
/* Forks the ranks and collects their result. */
#ifndef TRAIN_SUPERVISE_H
#define TRAIN_SUPERVISE_H

#include "rank/job.h"
#include "run/cycle.h"

/* How the ranks ended. */
struct supervise_end {
    uint32_t nlost;          /* ranks that were lost, if this ended the others; 0 if the run ended for another reason */
    bool stopping;           /* a stop was requested */
    bool comes_back;         /* the ranks have saved a checkpoint, and want to start again with the lost ones */
    uint64_t ndone;          /* steps done */
    uint64_t skipped_before; /* as in struct loop_results */
    uint64_t ended_ns;       /* time when the first rank was known to be lost */
};

/* Starts the ranks of this process (all ranks of the run, or the launcher's one) and watches them until they have
 * ended. tenants: (job->ntenants), or NULL. result: taken from the notes of the first rank. The error is the first that
 * a rank recorded, or names the rank that was lost. resume: the checkpoint to resume from, or NULL. */
int supervise(struct job *job, const char *resume, const struct cycle_tenant *tenants, struct train_result *result,
              struct supervise_end *end, struct fsdpck_error *err);

/* The result of one training, from the notes of its first rank. */
void supervise_read(const struct job *job, const struct loop_results *results, struct train_result *result);

#endif
