/* SPDX-License-Identifier: Apache-2.0 */
#include "ui/jobs.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/json_out.h"

#define ACTIVE            "('starting', 'running', 'stopping')"
#define WAITING_OR_ACTIVE "('queued', 'starting', 'running', 'stopping')"
#define COLUMNS \
    "id, kind, name, ranks, devices, output_dir, state, position, created, started, ended, exit_code, reason"

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- a job */

const char *job_text(const json_t *job, const char *key)
{
    const char *text = json_string_value(json_object_get(job, key));
    return text ? text : "";
}

int64_t job_int(const json_t *job, const char *key)
{
    return json_integer_value(json_object_get(job, key));
}

bool job_is(const json_t *job, const char *state)
{
    return strcmp(job_text(job, "state"), state) == 0;
}

bool job_is_active(const json_t *job)
{
    return job_is(job, "starting") || job_is(job, "running") || job_is(job, "stopping");
}

struct process job_process(const json_t *job)
{
    struct process p = { (pid_t)job_int(job, "pid"), (uint64_t)job_int(job, "ticks"), { 0 } };
    snprintf(p.boot, sizeof p.boot, "%s", job_text(job, "boot"));
    return p;
}

bool job_metrics_in(const json_t *job, const char *folder, char path[PATH_MAX])
{
    json_t *config = json_loads(job_text(job, "config"), 0, NULL);
    const char *name = job_text(json_object_get(config, "log"), "jsonl");
    const int n = snprintf(path, PATH_MAX, "%s/%s", folder, *name ? name : "metrics.jsonl");
    json_decref(config);
    return n >= 0 && n < PATH_MAX;
}

bool job_metrics(const json_t *job, char path[PATH_MAX])
{
    return job_metrics_in(job, job_text(job, "output_dir"), path);
}

/* The table holds devices as text. */
static bool parse_devices(json_t *rows)
{
    size_t i;
    json_t *row;
    json_array_foreach (rows, i, row) {
        json_t *list = json_loads(job_text(row, "devices"), 0, NULL);
        if (!json_out_put(row, "devices", list ? list : json_array()))
            return false;
    }
    return rows;
}

/* ---- reading */

static json_t *rows_in_transaction(struct sql *s, json_t *rows, struct fsdpck_error *err)
{
    const bool whole = parse_devices(rows);
    int rc = sql_end(s, err);
    if (!rc && !whole)
        rc = fsdpck_error_nomem(err, 1);
    if (!rc)
        return rows;
    json_decref(rows);
    return NULL;
}

json_t *jobs_get(struct sql *s, int64_t id, struct fsdpck_error *err)
{
    sql_begin(s);
    json_t *rows = rows_in_transaction(s, sql_rows(s, "SELECT * FROM jobs WHERE id = ?", "i", id), err);
    json_t *job = json_incref(json_array_get(rows, 0));
    if (rows && !job)
        fsdpck_error_set(err, FSDPCK_ERR_MISSING, "the queue", "there is no job %lld", (long long)id);
    json_decref(rows);
    return job;
}

json_t *jobs_list(struct sql *s, int64_t before, int64_t count, struct fsdpck_error *err)
{
    sql_begin(s);
    json_t *rows = sql_rows(s,
                            "SELECT " COLUMNS " FROM jobs WHERE state IN " WAITING_OR_ACTIVE " AND ?1 = 0 UNION ALL "
                            "SELECT * FROM (SELECT " COLUMNS " FROM jobs WHERE state NOT IN " WAITING_OR_ACTIVE
                            " AND (?1 = 0 OR id < ?1) ORDER BY id DESC LIMIT ?2)",
                            "ii", before, count);
    return rows_in_transaction(s, rows, err);
}

json_t *jobs_waiting(struct sql *s, struct fsdpck_error *err)
{
    sql_begin(s);
    return rows_in_transaction(s, sql_rows(s, "SELECT * FROM jobs WHERE state = 'queued' ORDER BY position", ""), err);
}

json_t *jobs_active(struct sql *s, struct fsdpck_error *err)
{
    sql_begin(s);
    return rows_in_transaction(s, sql_rows(s, "SELECT * FROM jobs WHERE state IN " ACTIVE, ""), err);
}

json_t *jobs_held(struct sql *s, struct fsdpck_error *err)
{
    size_t i;
    json_t *row, *held = json_object();
    sql_begin(s);
    json_t *rows = sql_rows(s, "SELECT device, job FROM held", "");
    json_array_foreach (rows, i, row)
        json_out_put(held, job_text(row, "device"), json_integer(job_int(row, "job")));
    json_decref(rows);
    if (!sql_end(s, err))
        return held;
    json_decref(held);
    return NULL;
}

bool jobs_have_folder(struct sql *s, const char *folder)
{
    struct fsdpck_error err;
    sql_begin(s);
    json_t *rows = sql_rows(s, "SELECT id FROM jobs WHERE output_dir = ? LIMIT 1", "s", folder);
    const bool found = json_array_size(rows) > 0;
    json_decref(rows);
    return !sql_end(s, &err) && found;
}

/* ---- writing */

/* Ends a transaction that should have changed job `id`; says why it did not. */
static int end_change(struct sql *s, int64_t id, int64_t nchanged, const char *why, struct fsdpck_error *err)
{
    json_t *rows = nchanged ? NULL : sql_rows(s, "SELECT state FROM jobs WHERE id = ?", "i", id);
    json_t *row = json_array_get(rows, 0);
    char state[20];
    snprintf(state, sizeof state, "%s", job_text(row, "state"));
    const bool there = row;
    json_decref(rows);
    const int rc = sql_end(s, err);
    if (rc || nchanged)
        return rc;
    if (!there)
        return fsdpck_error_set(err, FSDPCK_ERR_MISSING, "the queue", "there is no job %lld", (long long)id);
    return fsdpck_error_set(err, FSDPCK_ERR_EXISTS, "the queue", "job %lld is %s: %s", (long long)id, state, why);
}

/* Two jobs in one folder would overwrite each other's checkpoints. Returns false if another has it, and ends the
 * transaction. */
static bool folder_is_free(struct sql *s, int64_t id, const struct job_draft *draft, struct fsdpck_error *err)
{
    if (strcmp(draft->kind, "run") != 0)
        return true;
    json_t *rows = sql_rows(s, "SELECT id FROM jobs WHERE output_dir = ? AND kind = 'run' AND id <> ?", "si",
                            draft->output_dir, id);
    const int64_t other = job_int(json_array_get(rows, 0), "id");
    json_decref(rows);
    if (!other)
        return true;
    sql_abandon(s);
    fsdpck_error_set(err, FSDPCK_ERR_EXISTS, draft->output_dir, "output_dir is that of job %lld", (long long)other);
    return false;
}

int jobs_add(struct sql *s, const struct job_draft *draft, int64_t *id, struct fsdpck_error *err)
{
    sql_begin(s);
    if (!folder_is_free(s, 0, draft, err))
        return err->code;
    sql_run(s,
            "INSERT INTO jobs (kind, name, config, ranks, devices, output_dir, cwd, state, position, created) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, 'draft', 0, ?)",
            "sssisssd", draft->kind, draft->name, draft->config, (int64_t)draft->ranks, draft->devices,
            draft->output_dir, draft->cwd, now());
    *id = sql_last_id(s);
    return sql_end(s, err);
}

int jobs_edit(struct sql *s, int64_t id, const struct job_draft *draft, struct fsdpck_error *err)
{
    sql_begin(s);
    if (!folder_is_free(s, id, draft, err))
        return err->code;
    const int64_t n =
        sql_run(s,
                "UPDATE jobs SET name = ?, config = ?, ranks = ?, devices = ?, output_dir = ? "
                "WHERE id = ? AND kind = 'run' AND state NOT IN " WAITING_OR_ACTIVE,
                "ssissi", draft->name, draft->config, (int64_t)draft->ranks, draft->devices, draft->output_dir, id);
    return end_change(s, id, n, "a job that waits or runs cannot be edited", err);
}

int jobs_reconfigure(struct sql *s, int64_t id, const char *config, struct fsdpck_error *err)
{
    sql_begin(s);
    const int64_t n =
        sql_run(s, "UPDATE jobs SET config = ? WHERE id = ? AND kind = 'run' AND state = 'running'", "si", config, id);
    return end_change(s, id, n, "it does not run", err);
}

int jobs_remove(struct sql *s, int64_t id, struct fsdpck_error *err)
{
    sql_begin(s);
    const int64_t n = sql_run(s, "DELETE FROM jobs WHERE id = ? AND state NOT IN " ACTIVE, "i", id);
    return end_change(s, id, n, "stop it first", err);
}

int jobs_queue(struct sql *s, int64_t id, uint32_t ranks, struct fsdpck_error *err)
{
    sql_begin(s);
    const int64_t n = sql_run(s,
                              "UPDATE jobs SET state = 'queued', reason = '', ranks = iif(?2 > 0, ?2, ranks), "
                              "position = (SELECT ifnull(max(position), 0) + 1 FROM jobs) "
                              "WHERE id = ?1 AND state NOT IN " WAITING_OR_ACTIVE,
                              "ii", id, (int64_t)ranks);
    return end_change(s, id, n, "it is in the queue", err);
}

int jobs_unqueue(struct sql *s, int64_t id, struct fsdpck_error *err)
{
    sql_begin(s);
    const int64_t n = sql_run(s,
                              "UPDATE jobs SET state = iif(started IS NULL, 'draft', 'stopped'), reason = '' "
                              "WHERE id = ? AND state = 'queued'",
                              "i", id);
    return end_change(s, id, n, "it is not waiting", err);
}

int jobs_move(struct sql *s, int64_t id, int by, struct fsdpck_error *err)
{
    const char *before = "SELECT a.position AS mine, b.id AS other, b.position AS theirs FROM jobs a JOIN jobs b ON "
                         "b.state = 'queued' AND b.position < a.position WHERE a.id = ? AND a.state = 'queued' "
                         "ORDER BY b.position DESC LIMIT 1";
    const char *behind = "SELECT a.position AS mine, b.id AS other, b.position AS theirs FROM jobs a JOIN jobs b ON "
                         "b.state = 'queued' AND b.position > a.position WHERE a.id = ? AND a.state = 'queued' "
                         "ORDER BY b.position LIMIT 1";
    sql_begin(s);
    json_t *rows = sql_rows(s, by < 0 ? before : behind, "i", id);
    const json_t *row = json_array_get(rows, 0);
    const double mine = json_real_value(json_object_get(row, "mine"));
    const double theirs = json_real_value(json_object_get(row, "theirs"));
    const int64_t other = job_int(row, "other");
    json_decref(rows);
    int64_t n = 0;
    if (other) {
        sql_run(s, "UPDATE jobs SET position = ? WHERE id = ?", "di", mine, other);
        n = sql_run(s, "UPDATE jobs SET position = ? WHERE id = ?", "di", theirs, id);
    }
    return end_change(s, id, n, "it cannot be moved further", err);
}

int jobs_take(struct sql *s, const json_t *job, struct fsdpck_error *err)
{
    size_t i;
    const json_t *device;
    const int64_t id = job_int(job, "id");
    sql_begin(s);
    const int64_t n = sql_run(s,
                              "UPDATE jobs SET state = 'starting', pid = NULL, started = ?, ended = NULL, "
                              "exit_code = NULL, reason = '' WHERE id = ? AND state = 'queued'",
                              "di", now(), id);
    json_array_foreach (json_object_get(job, "devices"), i, device) {
        json_t *rows = sql_rows(s, "SELECT job FROM held WHERE device = ?", "s", json_string_value(device));
        const int64_t other = job_int(json_array_get(rows, 0), "job");
        json_decref(rows);
        if (other) {
            sql_abandon(s);
            return fsdpck_error_set(err, FSDPCK_ERR_EXISTS, json_string_value(device), "job %lld has it",
                                    (long long)other);
        }
        sql_run(s, "INSERT INTO held (device, job) VALUES (?, ?)", "si", json_string_value(device), id);
    }
    return end_change(s, id, n, "it is not waiting", err);
}

int jobs_running(struct sql *s, int64_t id, const struct process *p, struct fsdpck_error *err)
{
    sql_begin(s);
    const int64_t n = sql_run(s, "UPDATE jobs SET state = 'running', pid = ?, ticks = ?, boot = ? WHERE id = ?", "iisi",
                              (int64_t)p->pid, (int64_t)p->ticks, p->boot, id);
    return end_change(s, id, n, "it is not starting", err);
}

int jobs_stopping(struct sql *s, int64_t id, struct fsdpck_error *err)
{
    sql_begin(s);
    const int64_t n =
        sql_run(s, "UPDATE jobs SET state = 'stopping' WHERE id = ? AND state IN ('running', 'stopping')", "i", id);
    return end_change(s, id, n, "it does not run", err);
}

int jobs_ended(struct sql *s, int64_t id, const char *state, int code, const char *reason, struct fsdpck_error *err)
{
    sql_begin(s);
    sql_run(s, "DELETE FROM held WHERE job = ?", "i", id);
    const int64_t n = sql_run(s,
                              "UPDATE jobs SET state = ?, exit_code = iif(?2 < 0, NULL, ?2), reason = ?, ended = ?, "
                              "pid = NULL WHERE id = ?",
                              "sisdi", state, (int64_t)code, reason, now(), id);
    return end_change(s, id, n, "", err);
}
