/* SPDX-License-Identifier: Apache-2.0 */
/* What several groups of addresses share. */
#ifndef UI_API_H
#define UI_API_H

#include "ui/ui.h"

/* Devices, and jobs with their progress, as GET /api/jobs and the stream tell them. NULL and *err: failed. */
json_t *api_jobs_json(struct ui *ui, int64_t before, struct fsdpck_error *err);

/* At most nbytes of a file from an offset on, as text; *next: the offset behind them. "" if there is no such file. */
json_t *api_tail(const char *path, int64_t from, size_t nbytes, int64_t *next);

#endif
