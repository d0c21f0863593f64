/* SPDX-License-Identifier: Apache-2.0 */
/* Prints how a run stands: its step, loss, rates, where the time of its last steps went, and its ranks. It must not
 * know how often this is done. */
#ifndef TOOLS_TOP_VIEW_H
#define TOOLS_TOP_VIEW_H

#include <stdio.h>
#include <train/history.h>

struct top_run {
    const char *name;
    const struct train_history *history; /* its last steps, at least */
    const struct train_folder *folder;
    double quiet_seconds; /* since the last line of the metrics */
};

/* rows: of the terminal; 0: as many as there are. */
void top_view_print(FILE *f, const struct top_run *run, unsigned rows);

#endif
