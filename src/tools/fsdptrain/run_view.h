/* SPDX-License-Identifier: Apache-2.0 */
/* Shows a run on stderr: a table at its start, then one line for each step; on a terminal, a single line that is
 * redrawn. Does not know how a run is started. */
#ifndef TOOLS_RUN_VIEW_H
#define TOOLS_RUN_VIEW_H

#include <train/train.h>

#include "common/report.h"

/* Shared by this process and the ranks that part from it: rank 0's shows the steps, and whoever speaks next must know
 * what stands on the terminal. */
struct run_view {
    struct report report;
    uint64_t nsteps;
    uint64_t first_step; /* that was shown, at first_ns; 0: none */
    int64_t first_ns;
    int64_t kept_ns; /* when the last line that stays was printed, of a step or a phase */
    enum train_phase phase;
    int64_t phase_ns; /* when it began; 0: none has */
};

/* Lives as long as the process. NULL: no memory. */
struct run_view *run_view_new(bool quiet);
/* Shows the progress of the start: on a terminal one line, drawn again; elsewhere a line every ten seconds. */
void run_view_phase(struct run_view *v, enum train_phase phase, uint64_t done, uint64_t total);
void run_view_start(struct run_view *v, const struct train_start *start);
void run_view_step(struct run_view *v, const struct train_metrics *m);

#endif
