/* SPDX-License-Identifier: Apache-2.0 */
/* Shows a run on stderr: a table at its start, then a line per step; on a terminal, one line that is redrawn. It must
 * not know how a run is started. */
#ifndef TOOLS_RUN_VIEW_H
#define TOOLS_RUN_VIEW_H

#include <train/train.h>

#include "common/report.h"
#include "trend.h"

/* In memory shared by this process and the ranks that it forks: rank 0 draws the steps, and any other process that
 * prints must know what is on the terminal. */
struct run_view {
    struct report report;
    size_t ntenants;     /* that have started */
    uint64_t first_step; /* first step shown, at first_ns; 0: none */
    int64_t first_ns;
    int64_t kept_ns;                 /* when the last permanent line was printed, of a step or a phase */
    double losses[2 * TREND_WINDOW]; /* (nlosses) of the last steps that were shown */
    size_t nlosses;
    enum train_phase phase;
    int64_t phase_ns; /* when the phase began; 0: none yet */
};

/* Lives as long as the process. NULL: out of memory. */
struct run_view *run_view_new(bool quiet);
/* Shows progress before the first step: on a terminal as one redrawn line, elsewhere as a line every ten seconds. */
void run_view_phase(struct run_view *v, enum train_phase phase, uint64_t done, uint64_t total);
void run_view_start(struct run_view *v, const struct train_start *start);
void run_view_step(struct run_view *v, const struct train_metrics *m);

#endif
