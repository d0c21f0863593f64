/* SPDX-License-Identifier: Apache-2.0 */
/* Progress of the running jobs, from the last lines of their metrics. */
#ifndef UI_PROGRESS_H
#define UI_PROGRESS_H

#include "ui/ui.h"

/* Reads the metrics if they have grown; returns whether they have. */
bool progress_look(struct ui *ui, const json_t *job);
void progress_drop(struct ui *ui, int64_t id);
/* A copy of ui->progress that the caller owns; NULL: out of memory. */
json_t *progress_copy(struct ui *ui);

/* The last values of a metrics file, with the number of steps of the whole run (0: unknown): { "step", "steps", "loss",
 * … }; those of no step are left out. Owned by the caller. */
json_t *progress_values(const char *metrics, uint64_t nsteps);

#endif
