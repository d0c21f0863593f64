/* SPDX-License-Identifier: Apache-2.0 */
#include "ui/ending.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <train/history.h>
#include <unistd.h>

#include "ui/jobs.h"
#include "ui/tenants.h"

enum { TAIL = 4096 };

/* Returns true for an error line, "fsdptrain: …", but not for a note. *text: the rest after the program's name. */
static bool is_error(const char *line, const char **text)
{
    static const char *const names[] = { "fsdptrain: ", "fsdpck: " };
    for (size_t i = 0; i < 2; i++) {
        const size_t n = strlen(names[i]);
        *text = line + n;
        if (strncmp(line, names[i], n) == 0 && strncmp(line + n, "note: ", 6) != 0)
            return true;
    }
    return false;
}

/* Copies the last error of the log, or else its last line that is not empty, or "". */
static void find_reason(const struct ui *ui, const json_t *job, char *out, size_t nbytes)
{
    char path[PATH_MAX], tail[TAIL + 1], *rest = tail, *line;
    const char *text, *last = "", *error = NULL;
    const int fd = open(ui_job_file(ui, job_int(job, "id"), ".log", path), O_RDONLY | O_CLOEXEC);
    const off_t size = fd < 0 ? 0 : lseek(fd, 0, SEEK_END);
    const ssize_t n = fd < 0 ? 0 : pread(fd, tail, TAIL, size > TAIL ? size - TAIL : 0);
    if (fd >= 0)
        close(fd);
    tail[n > 0 ? n : 0] = '\0';
    while ((line = strsep(&rest, "\r\n"))) {
        if (is_error(line, &text))
            error = text;
        if (*line)
            last = line;
    }
    snprintf(out, nbytes, "%.*s", (int)nbytes - 1, error ? error : last);
}

static bool is_run(const json_t *job)
{
    return strcmp(job_text(job, "kind"), "run") == 0;
}

/* Returns true if a stop that was asked for ended it before there was anything to save: the program did not handle the
 * signal yet, or was loading and said so with the shell's code. */
static bool is_stopped_early(const json_t *job, const int *status)
{
    if (!status || !job_is(job, "stopping"))
        return false;
    return WIFSIGNALED(*status) ? WTERMSIG(*status) == SIGTERM : WEXITSTATUS(*status) == 128 + SIGTERM;
}

/* The end event of this start, borrowed from f; NULL if the run recorded none. */
static const json_t *recorded_end(const struct train_folder *f, const json_t *job)
{
    const size_t n = json_array_size(f->events);
    const json_t *last = json_array_get(f->events, n ? n - 1 : 0);
    const bool ours =
        json_number_value(json_object_get(last, "time")) >= json_number_value(json_object_get(job, "started")) - 1;
    return ours && strcmp(job_text(last, "event"), "end") == 0 ? last : NULL;
}

/* Each of a run's tenants ends in its own folder. names: those that the run has. */
static void end_of_tenants(const struct ui *ui, const json_t *job, const json_t *names, struct ending *out)
{
    char path[PATH_MAX];
    size_t i, nended = 0, nfinished = 0;
    const json_t *name;
    struct train_folder f;
    struct fsdpck_error err = { 0 };
    json_array_foreach (names, i, name)
        if (tenant_folder(job, json_string_value(name), path) && !train_folder_read(path, 0, &f, &err)) {
            nended += f.ended;
            nfinished += f.finished;
            train_folder_free(&f);
        }
    const size_t n = json_array_size(names);
    out->state = n && nfinished == n ? "finished" : n && nended == n ? "stopped" : "interrupted";
    if (nended < n || !n)
        find_reason(ui, job, out->reason, sizeof out->reason);
}

/* The names in a list of tenants; where the config names a folder of them, those that have begun. */
static json_t *names_of(const json_t *job, const json_t *tenants)
{
    size_t i;
    const json_t *tenant;
    if (!json_is_array(tenants))
        return tenant_names(job);
    json_t *names = json_array();
    json_array_foreach (tenants, i, tenant)
        json_array_append(names, json_object_get(tenant, "name"));
    return names;
}

static void end_of_run(const struct ui *ui, const json_t *job, struct ending *out)
{
    struct train_folder f;
    struct fsdpck_error err = { 0 };
    out->state = "interrupted";
    if (train_folder_read(job_text(job, "output_dir"), 0, &f, &err)) {
        find_reason(ui, job, out->reason, sizeof out->reason);
        return;
    }
    const json_t *end = recorded_end(&f, job);
    const char *how = job_text(end, "how");
    if (strcmp(how, "finished") == 0 || strcmp(how, "stopped") == 0 || strcmp(how, "failed") == 0)
        out->state = how[0] == 'f' ? how[1] == 'i' ? "finished" : "failed" : "stopped";
    if (*job_text(end, "text"))
        snprintf(out->reason, sizeof out->reason, "%s", job_text(end, "text"));
    else if (!end)
        find_reason(ui, job, out->reason, sizeof out->reason);
    train_folder_free(&f);
}

void ending_find(const struct ui *ui, const json_t *job, const int *status, struct ending *out)
{
    char path[PATH_MAX];
    *out = (struct ending){ .state = "failed", .code = status && WIFEXITED(*status) ? WEXITSTATUS(*status) : -1 };
    const bool began = access(ui_job_file(ui, job_int(job, "id"), ".began", path), F_OK) == 0;
    if (!began && !status) {
        out->state = "queued"; /* the server was killed before it let the process begin */
    } else if (is_stopped_early(job, status)) {
        out->state = "stopped";
    } else if (!began) {
        snprintf(out->reason, sizeof out->reason, "its log or its folder cannot be used: %.300s, %.300s",
                 ui_job_file(ui, job_int(job, "id"), ".log", path), job_text(job, "cwd"));
    } else if (status && WIFSIGNALED(*status)) {
        out->state = "interrupted";
        snprintf(out->reason, sizeof out->reason, "its process was killed by signal %d (%s)", WTERMSIG(*status),
                 strsignal(WTERMSIG(*status)));
    } else if (is_run(job) && (!status || out->code == 0)) {
        json_t *config = json_loads(job_text(job, "config"), 0, NULL);
        const json_t *tenants = json_object_get(config, "tenants");
        json_t *names = tenants ? names_of(job, tenants) : NULL;
        if (names)
            end_of_tenants(ui, job, names, out);
        else
            end_of_run(ui, job, out);
        json_decref(names);
        json_decref(config);
    } else if (out->code == 0 || (!status && access(job_text(job, "output_dir"), F_OK) == 0)) {
        out->state = "finished"; /* fsdpck writes all of its result, or none */
    } else {
        find_reason(ui, job, out->reason, sizeof out->reason);
    }
}
