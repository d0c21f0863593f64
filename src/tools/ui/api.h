/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that several api_*.c use. */
#ifndef UI_API_H
#define UI_API_H

#include "ui/ui.h"

/* The body of GET /api/jobs and of the event "jobs": devices, and jobs with their progress. Returns NULL and sets *err
 * on failure. */
json_t *api_jobs_json(struct ui *ui, int64_t before, struct fsdpck_error *err);

/* Reads at most nbytes of a file from an offset, as text; *next is the offset after them. Returns "" if the file does
 * not exist. */
json_t *api_tail(const char *path, int64_t from, size_t nbytes, int64_t *next);

#endif
