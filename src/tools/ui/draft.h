/* SPDX-License-Identifier: Apache-2.0 */
/* Validates the jobs that pages send. */
#ifndef UI_DRAFT_H
#define UI_DRAFT_H

#include "ui/jobs.h"
#include "ui/ui.h"

/* A job_draft whose strings are owned. Zero-initialise. */
struct draft {
    struct job_draft job;
    char *config, *devices, *name;
    char output_dir[PATH_MAX];
};

/* body: { "name": …, "config": { … }, "ranks": …, "devices": [ … ] }. The config must be one that `fsdptrain run` would
 * accept; FSDPCK_ERR_USAGE names the wrong key. cwd: start of relative paths. */
int draft_read(const struct ui *ui, const json_t *body, const char *cwd, struct draft *out, struct fsdpck_error *err);
/* A job that runs `fsdpck VERB` on a checkpoint of a run. */
int draft_tool(const json_t *run, const char *verb, uint64_t step, struct draft *out, struct fsdpck_error *err);
/* A copy of a run with a new name and an unused output_dir. */
int draft_clone(struct ui *ui, const json_t *run, struct draft *out, struct fsdpck_error *err);
void draft_free(struct draft *d);

#endif
