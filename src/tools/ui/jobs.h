/* SPDX-License-Identifier: Apache-2.0 */
/* The jobs of the queue. A job is a JSON object, as table `jobs` in sql.c has it; `devices` is a list of names, and
 * `config` the text of CONFIG.json.
 *
 *   draft → queued → starting → running → stopping → finished, stopped, failed or interrupted → queued …
 */
#ifndef UI_JOBS_H
#define UI_JOBS_H

#include <limits.h>
#include <stdbool.h>

#include "ui/process.h"
#include "ui/sql.h"

/* The part of a job that users choose; strings are borrowed. */
struct job_draft {
    const char *kind; /* "run", "export-lora" or "merge-lora" */
    const char *name, *config, *output_dir, *cwd;
    const char *devices; /* JSON */
    uint32_t ranks;
};

/* Functions that return an error code set *err: FSDPCK_ERR_MISSING: there is no such job; FSDPCK_ERR_EXISTS: the job's
 * state, or another job, does not allow it. */
int jobs_add(struct sql *s, const struct job_draft *draft, int64_t *id, struct fsdpck_error *err);
/* Only for a run that neither waits nor trains. Kind and cwd stay. */
int jobs_edit(struct sql *s, int64_t id, const struct job_draft *draft, struct fsdpck_error *err);
/* Only for a run that trains; output_dir stays. */
int jobs_reconfigure(struct sql *s, int64_t id, const char *config, struct fsdpck_error *err);
int jobs_remove(struct sql *s, int64_t id, struct fsdpck_error *err);
/* Appends the job to the queue, with `ranks` ranks (0: unchanged). */
int jobs_queue(struct sql *s, int64_t id, uint32_t ranks, struct fsdpck_error *err);
int jobs_unqueue(struct sql *s, int64_t id, struct fsdpck_error *err);
/* Swaps a waiting job with the previous (by -1) or the next one (1). */
int jobs_move(struct sql *s, int64_t id, int by, struct fsdpck_error *err);

/* The caller owns the results. NULL: failure, and *err is set. */
json_t *jobs_get(struct sql *s, int64_t id, struct fsdpck_error *err);
/* Waiting and running jobs (if before is 0), and the newest `count` others with a number below `before` (0: of all).
 * Configs are left out. */
json_t *jobs_list(struct sql *s, int64_t before, int64_t count, struct fsdpck_error *err);
json_t *jobs_waiting(struct sql *s, struct fsdpck_error *err); /* in starting order */
json_t *jobs_active(struct sql *s, struct fsdpck_error *err);  /* starting, running, stopping */
json_t *jobs_held(struct sql *s, struct fsdpck_error *err);    /* { device: id } */

/* Whether a run writes to this folder. */
bool jobs_have_folder(struct sql *s, const char *folder);

/* Reserves the devices of a waiting job, which is then starting. FSDPCK_ERR_EXISTS: a device is in use. */
int jobs_take(struct sql *s, const json_t *job, struct fsdpck_error *err);
int jobs_running(struct sql *s, int64_t id, const struct process *p, struct fsdpck_error *err);
int jobs_stopping(struct sql *s, int64_t id, struct fsdpck_error *err);
/* Releases the devices of a job. code: exit code, -1 if unknown. State "queued": the job never began and waits again.
 */
int jobs_ended(struct sql *s, int64_t id, const char *state, int code, const char *reason, struct fsdpck_error *err);

const char *job_text(const json_t *job, const char *key); /* "" where it is null */
int64_t job_int(const json_t *job, const char *key);
bool job_is(const json_t *job, const char *state);
bool job_is_active(const json_t *job);
struct process job_process(const json_t *job);
/* Where the run writes its metrics (log.jsonl). Returns false if the path is too long. */
bool job_metrics(const json_t *job, char path[PATH_MAX]);
bool job_metrics_in(const json_t *job, const char *folder, char path[PATH_MAX]); /* a tenant, in its own folder */

#endif
