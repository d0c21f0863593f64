/* SPDX-License-Identifier: Apache-2.0 */
/* Starts the process of a job. */
#ifndef UI_LAUNCH_H
#define UI_LAUNCH_H

#include "ui/ui.h"

/* For a job that has its devices. If it cannot be started, it becomes "failed" with the reason. */
void launch_job(struct ui *ui, const json_t *job);
/* The config that the job's process reads, in one step. */
int launch_write_config(const struct ui *ui, int64_t id, const char *text, struct fsdpck_error *err);

#endif
