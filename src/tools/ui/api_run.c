/* SPDX-License-Identifier: Apache-2.0 */
/* One job: its process, log, curves, files. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/json_out.h"
#include "report/report_out.h"
#include "ui/api.h"
#include "ui/beneath.h"
#include "ui/control.h"
#include "ui/http.h"
#include "ui/jobs.h"

/* MOST_LOG: limit of one answer; the page then asks for the rest. */
enum { MOST_LOG = 1 << 20, FIRST_LOG = 64 << 10, POINTS = 1000, SAMPLES = 40 };

/* ---- requests to a process */

static struct MHD_Response *send_signal(struct request *r, unsigned *status, int signal, bool group)
{
    struct fsdpck_error err = { 0 };
    json_t *job = jobs_get(r->ui->sql, r->id, &err);
    int rc = job ? jobs_stopping(r->ui->sql, r->id, &err) : err.code;
    const struct process p = job_process(job);
    if (!rc && !process_signal(&p, signal, group))
        rc = fsdpck_error_set(&err, FSDPCK_ERR_EXISTS, "the job", "its process has ended");
    json_decref(job);
    if (rc)
        return http_error(status, &err);
    ui_poke(r->ui);
    return http_done(status);
}

static struct MHD_Response *stop_job(struct request *r, unsigned *status)
{
    return send_signal(r, status, SIGTERM, false);
}

static struct MHD_Response *kill_job(struct request *r, unsigned *status)
{
    return send_signal(r, status, SIGKILL, true);
}

static struct MHD_Response *ask_run(struct request *r, unsigned *status)
{
    struct fsdpck_error err = { 0 };
    json_t *job = jobs_get(r->ui->sql, r->id, &err);
    int rc = job ? 0 : err.code;
    if (!rc && !job_is(job, "running"))
        rc = fsdpck_error_set(&err, FSDPCK_ERR_EXISTS, "the job", "it does not run");
    if (!rc)
        rc = control_write(job_text(job, "output_dir"), strrchr(r->route->path, '/') + 1, &err);
    json_decref(job);
    return rc ? http_error(status, &err) : http_done(status);
}

/* ---- what it has written */

json_t *api_tail(const char *path, int64_t from, size_t nbytes, int64_t *next)
{
    char *text = malloc(nbytes + 1);
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    const ssize_t n = text && fd >= 0 ? pread(fd, text, nbytes, from) : 0;
    if (fd >= 0)
        close(fd);
    *next = from + (n > 0 ? n : 0);
    if (!text)
        return NULL;
    text[n > 0 ? n : 0] = '\0';
    for (ssize_t i = 0; i < n; i++) /* zero bytes would end the text */
        text[i] = text[i] ? text[i] : ' ';
    json_t *o = json_out_text(text);
    free(text);
    return o;
}

/* ?from=: an offset; without it, the last lines. */
static struct MHD_Response *show_log(struct request *r, unsigned *status)
{
    char path[PATH_MAX];
    struct stat st = { 0 };
    int64_t next;
    ui_job_file(r->ui, r->id, ".log", path);
    const int64_t size = stat(path, &st) ? 0 : (int64_t)st.st_size;
    const int64_t from = http_query(r, "from", size > FIRST_LOG ? size - FIRST_LOG : 0);
    json_t *text = api_tail(path, from, MOST_LOG, &next);
    return http_json(json_pack("{s:o, s:I, s:I, s:I}", "text", text, "from", (json_int_t)from, "next", (json_int_t)next,
                               "size", (json_int_t)size),
                     status);
}

/* Reads the metrics and the folder of a run. */
static int read_run(const json_t *job, size_t nsamples, struct report_run *run, struct fsdpck_error *err)
{
    char path[PATH_MAX];
    run->name = job_text(job, "name");
    if (!job_metrics(job, path))
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, job_text(job, "output_dir"), "the path is too long");
    int rc = train_folder_read(job_text(job, "output_dir"), nsamples, &run->folder, err);
    if (!rc && access(path, F_OK) == 0)
        rc = train_history_read(path, &run->history, err);
    return rc;
}

static void free_run(struct report_run *run)
{
    train_history_free(&run->history);
    train_folder_free(&run->folder);
}

static struct MHD_Response *show_run(struct request *r, unsigned *status)
{
    struct fsdpck_error err = { 0 };
    struct report_run run = { 0 };
    struct stat st = { 0 };
    char path[PATH_MAX];
    json_t *job = jobs_get(r->ui->sql, r->id, &err), *o = NULL;
    int rc = job ? 0 : err.code;
    /* The stream continues from this size. A line written meanwhile is sent twice rather than lost. */
    const int64_t size = job && job_metrics(job, path) && !stat(path, &st) ? (int64_t)st.st_size : 0;
    if (!rc && access(job_text(job, "output_dir"), F_OK)) /* it has not begun */
        run.folder.events = json_array();
    else if (!rc)
        rc = read_run(job, SAMPLES, &run, &err);
    if (!rc)
        o = report_json_run(&run, POINTS);
    json_out_put(o, "metrics_bytes", json_integer(size));
    free_run(&run);
    json_decref(job);
    return rc ? http_error(status, &err) : http_json(o, status);
}

/* A PNG file of samples/, for the page; a script gives the request its token. */
static struct MHD_Response *send_picture(struct request *r, unsigned *status)
{
    struct fsdpck_error err = { 0 };
    struct stat st;
    char file[PATH_MAX];
    const size_t n = r->rest ? strlen(r->rest) : 0;
    json_t *job = jobs_get(r->ui->sql, r->id, &err);
    if (!job)
        return http_error(status, &err);
    const bool is_png = n > 4 && n < 256 && strcmp(r->rest + n - 4, ".png") == 0 && !strchr(r->rest, '/');
    snprintf(file, sizeof file, "samples/%.255s", is_png ? r->rest : "");
    const int fd = is_png ? beneath_open(job_text(job, "output_dir"), file, &st) : -1;
    json_decref(job);
    if (fd < 0)
        return http_refuse(status, MHD_HTTP_NOT_FOUND, "there is no such picture");
    struct MHD_Response *answer = MHD_create_response_from_fd64((uint64_t)st.st_size, fd);
    MHD_add_response_header(answer, "Content-Type", "image/png");
    MHD_add_response_header(answer, "Cache-Control", "no-store");
    return answer;
}

static struct MHD_Response *list_files(struct request *r, unsigned *status)
{
    struct fsdpck_error err = { 0 };
    json_t *job = jobs_get(r->ui->sql, r->id, &err);
    json_t *files = job ? beneath_list(job_text(job, "output_dir")) : NULL;
    json_decref(job);
    return files ? http_json(json_pack("{s:o}", "files", files), status) : http_error(status, &err);
}

/* ---- links */

/* { "file": "adapter/adapter_model.safetensors" }, or "" for the report. */
static struct MHD_Response *make_ticket(struct request *r, unsigned *status)
{
    struct ticket t = { .job = r->id };
    struct fsdpck_error err = { 0 };
    const char *file = json_string_value(json_object_get(r->json, "file"));
    json_t *job = jobs_get(r->ui->sql, r->id, &err);
    if (!job)
        return http_error(status, &err);
    json_decref(job);
    if (!file || strlen(file) >= sizeof t.file)
        return http_refuse(status, MHD_HTTP_BAD_REQUEST, "file: a path below output_dir is wanted");
    snprintf(t.file, sizeof t.file, "%s", file);
    if (!tickets_add(&r->ui->tickets, &t))
        return http_refuse(status, MHD_HTTP_INTERNAL_SERVER_ERROR, "the system has no random numbers");
    return http_json(json_pack("{s:s+}", "href", "/download/", t.name), status);
}

/* The sandbox gives the report another origin: its script can draw, but cannot send requests to this server. */
static struct MHD_Response *send_report(const json_t *job, unsigned *status)
{
    struct fsdpck_error err = { 0 };
    struct report_run run = { 0 };
    char *text = NULL;
    size_t nbytes = 0;
    int rc = read_run(job, SAMPLES, &run, &err);
    run.folder_path = job_text(job, "output_dir");
    FILE *f = rc ? NULL : open_memstream(&text, &nbytes);
    const bool whole = f && report_out_page(f, &run, 1);
    const bool closed = f && fclose(f) == 0;
    free_run(&run);
    if (rc)
        return http_error(status, &err);
    if (!whole || !closed) {
        free(text);
        return NULL;
    }
    struct MHD_Response *answer = MHD_create_response_from_buffer(nbytes, text, MHD_RESPMEM_MUST_FREE);
    MHD_add_response_header(answer, "Content-Type", "text/html; charset=utf-8");
    MHD_add_response_header(answer, "Content-Security-Policy",
                            "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; script-src "
                            "'unsafe-inline'; img-src data:");
    return answer;
}

static struct MHD_Response *send_file(const json_t *job, const char *file, unsigned *status)
{
    char header[1200];
    struct stat st;
    const char *name = strrchr(file, '/');
    const int fd = beneath_open(job_text(job, "output_dir"), file, &st);
    if (fd < 0)
        return http_refuse(status, MHD_HTTP_NOT_FOUND, "there is no such file");
    struct MHD_Response *answer = MHD_create_response_from_fd64((uint64_t)st.st_size, fd);
    size_t n = (size_t)snprintf(header, sizeof header, "attachment; filename=\"");
    for (name = name ? name + 1 : file; *name && n < 1100; name++)
        header[n++] = *name < ' ' || strchr("\"\\;%", *name) || (unsigned char)*name > '~' ? '_' : *name;
    header[n++] = '"';
    header[n] = '\0';
    MHD_add_response_header(answer, "Content-Disposition", header);
    MHD_add_response_header(answer, "Content-Type", "application/octet-stream");
    MHD_add_response_header(answer, "Cache-Control", "no-store");
    return answer;
}

static struct MHD_Response *download(struct request *r, unsigned *status)
{
    struct ticket t;
    struct fsdpck_error err = { 0 };
    if (!r->rest || !tickets_take(&r->ui->tickets, r->rest, &t))
        return http_refuse(status, MHD_HTTP_NOT_FOUND, "this link has been used, or is too old");
    json_t *job = jobs_get(r->ui->sql, t.job, &err);
    if (!job)
        return http_error(status, &err);
    struct MHD_Response *answer = *t.file ? send_file(job, t.file, status) : send_report(job, status);
    json_decref(job);
    return answer;
}

const struct route routes_run[] = {
    { .method = "POST", .path = "/api/jobs/#/stop", .handle = stop_job },
    { .method = "POST", .path = "/api/jobs/#/kill", .handle = kill_job },
    { .method = "POST", .path = "/api/jobs/#/save", .handle = ask_run },
    { .method = "POST", .path = "/api/jobs/#/sample", .handle = ask_run },
    { .method = "GET", .path = "/api/jobs/#/log", .handle = show_log },
    { .method = "GET", .path = "/api/jobs/#/run", .handle = show_run },
    { .method = "GET", .path = "/api/jobs/#/samples/*", .handle = send_picture },
    { .method = "GET", .path = "/api/jobs/#/files", .handle = list_files },
    { .method = "POST", .path = "/api/jobs/#/tickets", .handle = make_ticket },
    { .method = "GET", .path = "/download/*", .handle = download, .open = true },
    { .path = NULL },
};
