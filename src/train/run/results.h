/* SPDX-License-Identifier: Apache-2.0 */
/* What outlives the process of a rank, for its supervisor. */
#ifndef TRAIN_RESULTS_H
#define TRAIN_RESULTS_H

#include <stdbool.h>
#include <stdint.h>

struct loop_results {
    uint64_t ndone, saved, stopped, save_failed; /* saved: step of the last committed checkpoint, 0: none */
    uint64_t skipped, trailing; /* steps with non-finite gradients: in this call; since the last update */
    uint64_t skipped_before;    /* the same: before this call, plus 1; 0: not known yet */
    uint64_t requested_save;    /* step of a requested save that has not been answered; 0: none */
    uint64_t comes_back;        /* the step is saved, and lost ranks come back */
    uint64_t encoded;           /* texts and pictures have been encoded, if there are any */
};

/* True if all steps are done, but the last ten or half of them were skipped. The result is not usable. */
static inline bool results_diverged(const struct loop_results *r, uint64_t nsteps)
{
    return r->ndone >= nsteps && r->ndone && (r->trailing >= 10 || 2 * r->trailing >= nsteps);
}

#endif
