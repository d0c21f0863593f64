/* SPDX-License-Identifier: Apache-2.0 */
#include "ui/schedule.h"

#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/json_out.h"
#include "ui/ending.h"
#include "ui/jobs.h"
#include "ui/launch.h"
#include "ui/progress.h"

static void note_change(struct ui *ui)
{
    pthread_mutex_lock(&ui->mutex);
    ui->version++;
    pthread_mutex_unlock(&ui->mutex);
}

/* ---- jobs that have ended */

static void end_job(struct ui *ui, const json_t *job, const int *status)
{
    struct ending end;
    struct fsdpck_error err = { 0 };
    ending_find(ui, job, status, &end);
    jobs_ended(ui->sql, job_int(job, "id"), end.state, end.code, end.reason, &err);
    progress_drop(ui, job_int(job, "id"));
    note_change(ui);
}

/* A job that an earlier server started is not a child of this process, so its exit code is unknown. */
static void look_at(struct ui *ui, const json_t *job)
{
    const struct process p = job_process(job);
    int status;
    const pid_t got = p.pid > 0 ? waitpid(p.pid, &status, WNOHANG) : -1;
    if (got == p.pid)
        end_job(ui, job, &status);
    else if (got < 0 && !process_alive(&p))
        end_job(ui, job, NULL);
    else if (progress_look(ui, job))
        note_change(ui);
}

/* ---- jobs that wait */

/* A server that was started with other devices (--gpus) leaves the jobs of those that it lacks waiting. */
static bool has_device(const struct ui *ui, const char *name)
{
    size_t i;
    const json_t *device;
    json_array_foreach (ui->devices, i, device)
        if (strcmp(json_string_value(device), name) == 0)
            return true;
    return false;
}

/* A job may not overtake an earlier one that waits for the same device: a job with many devices could wait forever. */
static bool may_start(const struct ui *ui, const json_t *job, const json_t *held, json_t *wanted)
{
    size_t i;
    const json_t *device;
    bool free = true;
    json_array_foreach (json_object_get(job, "devices"), i, device) {
        const char *name = json_string_value(device);
        free &= has_device(ui, name) && !json_object_get(held, name) && !json_object_get(wanted, name);
        json_out_put(wanted, name, json_true());
    }
    return free;
}

static void start_waiting(struct ui *ui)
{
    struct fsdpck_error err = { 0 };
    size_t i;
    json_t *job, *wanted = json_object();
    json_t *waiting = jobs_waiting(ui->sql, &err), *held = jobs_held(ui->sql, &err);
    json_array_foreach (waiting, i, job) {
        if (!wanted || !held || !may_start(ui, job, held, wanted) || jobs_take(ui->sql, job, &err))
            continue;
        launch_job(ui, job);
        note_change(ui);
    }
    json_decref(waiting);
    json_decref(held);
    json_decref(wanted);
}

void schedule_look(struct ui *ui)
{
    struct fsdpck_error err = { 0 };
    size_t i;
    json_t *job, *active = jobs_active(ui->sql, &err);
    json_array_foreach (active, i, job)
        look_at(ui, job);
    json_decref(active);
    start_waiting(ui);
}

int schedule_recover(struct ui *ui, struct fsdpck_error *err)
{
    size_t i;
    int rc = 0;
    json_t *job, *active = jobs_active(ui->sql, err);
    json_array_foreach (active, i, job) {
        if (!rc && job_is(job, "starting"))
            rc = jobs_ended(ui->sql, job_int(job, "id"), "queued", -1, "", err);
    }
    const bool failed = !active;
    json_decref(active);
    return failed ? err->code : rc;
}
