/* SPDX-License-Identifier: Apache-2.0 */
/* Server-sent events for a page: changes of the queue, and new metrics and log lines of one job. Browsers limit the
 * connections to a server, so one stream carries everything. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/json_out.h"
#include "ui/api.h"
#include "ui/http.h"
#include "ui/jobs.h"

/* QUIET_SECONDS: after these, a comment is sent to detect dead peers. */
enum { QUIET_SECONDS = 15, MOST_STREAMS = 64, PIECE_NBYTES = 256 << 10 };

struct stream {
    struct ui *ui;
    int64_t job, metrics, log; /* job on the page, and offsets of its next unsent bytes */
    char metrics_path[PATH_MAX];
    uint64_t version, ticks;
    time_t sent;
    char *text; /* (nbytes) text to send, from `at` on */
    size_t nbytes, at;
};

static time_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec;
}

static void put_event(FILE *f, const char *name, json_t *data)
{
    char *text = data ? json_dumps(data, JSON_COMPACT) : NULL;
    json_decref(data);
    if (text)
        fprintf(f, "event: %s\ndata: %s\n\n", name, text);
    free(text);
}

static void put_grown(FILE *f, const char *name, const char *path, int64_t *at)
{
    int64_t next;
    json_t *text = api_tail(path, *at, PIECE_NBYTES, &next);
    if (next > *at)
        put_event(f, name,
                  json_pack("{s:O, s:I, s:I}", "text", text, "from", (json_int_t)*at, "next", (json_int_t)next));
    json_decref(text);
    *at = next;
}

static void collect(struct stream *s, bool changed)
{
    char path[PATH_MAX];
    struct fsdpck_error err = { 0 };
    free(s->text);
    s->text = NULL;
    s->nbytes = s->at = 0;
    FILE *f = open_memstream(&s->text, &s->nbytes);
    if (!f)
        return;
    /* Read before the files but sent after them: a page that is told of a job's end already has its last lines. */
    json_t *jobs = changed ? api_jobs_json(s->ui, 0, &err) : NULL;
    if (s->job) {
        put_grown(f, "metrics", s->metrics_path, &s->metrics);
        put_grown(f, "log", ui_job_file(s->ui, s->job, ".log", path), &s->log);
    }
    put_event(f, "jobs", jobs);
    if (now() - s->sent >= QUIET_SECONDS)
        fputs(": quiet\n\n", f);
    fclose(f);
}

/* Waits for the next round of the scheduler. Returns false if the server ends. */
static bool wait_for_tick(struct stream *s, bool *changed)
{
    struct ui *ui = s->ui;
    pthread_mutex_lock(&ui->mutex);
    while (!ui->stops && ui->ticks == s->ticks)
        pthread_cond_wait(&ui->changed, &ui->mutex);
    *changed = ui->version != s->version;
    s->version = ui->version;
    s->ticks = ui->ticks;
    const bool stops = ui->stops;
    pthread_mutex_unlock(&ui->mutex);
    return !stops;
}

static ssize_t read_stream(void *ctx, uint64_t offset, char *buf, size_t most)
{
    struct stream *s = ctx;
    bool changed;
    (void)offset;
    while (s->at >= s->nbytes) {
        if (!wait_for_tick(s, &changed))
            return MHD_CONTENT_READER_END_OF_STREAM;
        collect(s, changed);
    }
    const size_t n = s->nbytes - s->at < most ? s->nbytes - s->at : most;
    memcpy(buf, s->text + s->at, n);
    s->at += n;
    s->sent = now();
    return (ssize_t)n;
}

static void drop_stream(void *ctx)
{
    struct stream *s = ctx;
    pthread_mutex_lock(&s->ui->mutex);
    s->ui->nstreams--;
    pthread_mutex_unlock(&s->ui->mutex);
    free(s->text);
    free(s);
}

static bool enter(struct ui *ui)
{
    pthread_mutex_lock(&ui->mutex);
    const bool free = ui->nstreams < MOST_STREAMS;
    ui->nstreams += free;
    pthread_mutex_unlock(&ui->mutex);
    return free;
}

/* ?job=ID&metrics=OFFSET&log=OFFSET */
static struct MHD_Response *open_stream(struct request *r, unsigned *status)
{
    struct fsdpck_error err = { 0 };
    const int64_t id = http_query(r, "job", 0);
    json_t *job = id ? jobs_get(r->ui->sql, id, &err) : NULL;
    if (id && !job)
        return http_error(status, &err);
    struct stream *s = enter(r->ui) ? calloc(1, sizeof *s) : NULL;
    if (!s) {
        json_decref(job);
        return http_refuse(status, MHD_HTTP_TOO_MANY_REQUESTS, "too many pages are open");
    }
    *s = (struct stream){ .ui = r->ui,
                          .version = UINT64_MAX,
                          .job = id,
                          .metrics = http_query(r, "metrics", 0),
                          .log = http_query(r, "log", 0),
                          .sent = now() };
    if (job)
        job_metrics(job, s->metrics_path);
    json_decref(job);
    struct MHD_Response *answer =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 65536, read_stream, s, drop_stream);
    MHD_add_response_header(answer, "Content-Type", "text/event-stream");
    MHD_add_response_header(answer, "Cache-Control", "no-store");
    return answer;
}

const struct route routes_stream[] = {
    { .method = "GET", .path = "/api/stream", .handle = open_stream },
    { .path = NULL },
};
