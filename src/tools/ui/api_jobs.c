/* SPDX-License-Identifier: Apache-2.0 */
/* The queue: jobs as they are listed, written, ordered and started. */
#include <string.h>

#include "common/json_out.h"
#include "ui/api.h"
#include "ui/draft.h"
#include "ui/http.h"
#include "ui/jobs.h"
#include "ui/progress.h"

enum { PAGE = 100 };

json_t *api_jobs_json(struct ui *ui, int64_t before, struct fsdpck_error *err)
{
    size_t i;
    json_t *job, *jobs = jobs_list(ui->sql, before, PAGE, err);
    json_t *held = jobs ? jobs_held(ui->sql, err) : NULL, *progress = progress_copy(ui), *list = json_array();
    json_array_foreach (ui->devices, i, job)
        json_out_append(list,
                        json_pack("{s:O, s:O?}", "name", job, "job", json_object_get(held, json_string_value(job))));
    json_array_foreach (jobs, i, job) {
        char key[24];
        snprintf(key, sizeof key, "%lld", (long long)job_int(job, "id"));
        if (json_object_get(progress, key))
            json_object_set(job, "progress", json_object_get(progress, key));
    }
    json_t *o = held
                    ? json_pack("{s:o, s:o, s:s, s:i, s:i, s:b}", "jobs", jobs, "devices", list, "dir", ui->dir,
                                "processors", (int)ui->nprocessors, "page", PAGE, "more", json_array_size(jobs) >= PAGE)
                    : NULL;
    json_decref(held);
    json_decref(progress);
    if (!o && !err->code)
        fsdpck_error_nomem(err, 1);
    return o;
}

static struct MHD_Response *list_jobs(struct request *r, unsigned *status)
{
    struct fsdpck_error err = { 0 };
    json_t *o = api_jobs_json(r->ui, http_query(r, "before", 0), &err);
    return o ? http_json(o, status) : http_error(status, &err);
}

static struct MHD_Response *show_job(struct request *r, unsigned *status)
{
    struct fsdpck_error err = { 0 };
    json_t *job = jobs_get(r->ui->sql, r->id, &err);
    if (!job)
        return http_error(status, &err);
    json_out_put(job, "config", json_loads(job_text(job, "config"), 0, NULL));
    json_object_del(job, "boot");
    json_object_del(job, "ticks");
    return http_json(job, status);
}

/* Adds a draft to the queue; the answer holds its number. */
static struct MHD_Response *add(struct request *r, struct draft *draft, int rc, bool queues, struct fsdpck_error *err,
                                unsigned *status)
{
    int64_t id = 0;
    if (!rc)
        rc = jobs_add(r->ui->sql, &draft->job, &id, err);
    if (!rc && queues)
        rc = jobs_queue(r->ui->sql, id, 0, err);
    draft_free(draft);
    if (rc)
        return http_error(status, err);
    ui_poke(r->ui);
    *status = MHD_HTTP_CREATED;
    return http_json(json_pack("{s:I}", "id", (json_int_t)id), status);
}

static struct MHD_Response *add_job(struct request *r, unsigned *status)
{
    struct draft draft = { 0 };
    struct fsdpck_error err = { 0 };
    const int rc = draft_read(r->ui, r->json, r->ui->cwd, &draft, &err);
    return add(r, &draft, rc, json_is_true(json_object_get(r->json, "queue")), &err, status);
}

/* Answers a request that changed a job, or failed to. */
static struct MHD_Response *changed(struct request *r, int rc, const struct fsdpck_error *err, unsigned *status)
{
    if (rc)
        return http_error(status, err);
    ui_poke(r->ui);
    return http_done(status);
}

static struct MHD_Response *edit_job(struct request *r, unsigned *status)
{
    struct draft draft = { 0 };
    struct fsdpck_error err = { 0 };
    json_t *job = jobs_get(r->ui->sql, r->id, &err);
    int rc = job ? draft_read(r->ui, r->json, job_text(job, "cwd"), &draft, &err) : err.code;
    if (!rc)
        rc = jobs_edit(r->ui->sql, r->id, &draft.job, &err);
    draft_free(&draft);
    json_decref(job);
    return changed(r, rc, &err, status);
}

static struct MHD_Response *remove_job(struct request *r, unsigned *status)
{
    static const char *const endings[] = { ".json", ".json.new", ".log", ".began" };
    char path[PATH_MAX];
    struct fsdpck_error err = { 0 };
    const int rc = jobs_remove(r->ui->sql, r->id, &err);
    for (size_t i = 0; i < sizeof endings / sizeof endings[0] && !rc; i++)
        unlink(ui_job_file(r->ui, r->id, endings[i], path));
    return changed(r, rc, &err, status);
}

static struct MHD_Response *queue_job(struct request *r, unsigned *status)
{
    struct fsdpck_error err = { 0 };
    const json_t *ranks = json_object_get(r->json, "ranks");
    const json_int_t n = json_integer_value(ranks);
    if (ranks && (!json_is_integer(ranks) || n < 1 || n > 1024))
        return http_refuse(status, MHD_HTTP_BAD_REQUEST, "ranks: a whole number from 1 to 1024 is wanted");
    return changed(r, jobs_queue(r->ui->sql, r->id, (uint32_t)n, &err), &err, status);
}

static struct MHD_Response *unqueue_job(struct request *r, unsigned *status)
{
    struct fsdpck_error err = { 0 };
    return changed(r, jobs_unqueue(r->ui->sql, r->id, &err), &err, status);
}

static struct MHD_Response *move_job(struct request *r, unsigned *status)
{
    struct fsdpck_error err = { 0 };
    const int by = json_integer_value(json_object_get(r->json, "by")) < 0 ? -1 : 1;
    return changed(r, jobs_move(r->ui->sql, r->id, by, &err), &err, status);
}

static struct MHD_Response *clone_job(struct request *r, unsigned *status)
{
    struct draft draft = { 0 };
    struct fsdpck_error err = { 0 };
    json_t *job = jobs_get(r->ui->sql, r->id, &err);
    int rc = job ? 0 : err.code;
    if (!rc && strcmp(job_text(job, "kind"), "run") != 0)
        rc = fsdpck_error_set(&err, FSDPCK_ERR_USAGE, "clone", "only a run can be cloned");
    if (!rc)
        rc = draft_clone(r->ui, job, &draft, &err);
    struct MHD_Response *answer = add(r, &draft, rc, false, &err, status);
    json_decref(job);
    return answer;
}

/* { "step": N }: the job needs no device, so it starts at once. */
static struct MHD_Response *use_tool(struct request *r, unsigned *status)
{
    struct draft draft = { 0 };
    struct fsdpck_error err = { 0 };
    const char *verb = strrchr(r->route->path, '/') + 1;
    const json_int_t step = json_integer_value(json_object_get(r->json, "step"));
    json_t *job = jobs_get(r->ui->sql, r->id, &err);
    int rc = job ? draft_tool(job, verb, step > 0 ? (uint64_t)step : 0, &draft, &err) : err.code;
    struct MHD_Response *answer = add(r, &draft, rc, true, &err, status);
    json_decref(job);
    return answer;
}

const struct route routes_jobs[] = {
    { .method = "GET", .path = "/api/jobs", .handle = list_jobs },
    { .method = "POST", .path = "/api/jobs", .handle = add_job },
    { .method = "GET", .path = "/api/jobs/#", .handle = show_job },
    { .method = "PUT", .path = "/api/jobs/#", .handle = edit_job },
    { .method = "DELETE", .path = "/api/jobs/#", .handle = remove_job },
    { .method = "POST", .path = "/api/jobs/#/queue", .handle = queue_job },
    { .method = "POST", .path = "/api/jobs/#/unqueue", .handle = unqueue_job },
    { .method = "POST", .path = "/api/jobs/#/move", .handle = move_job },
    { .method = "POST", .path = "/api/jobs/#/clone", .handle = clone_job },
    { .method = "POST", .path = "/api/jobs/#/export-lora", .handle = use_tool },
    { .method = "POST", .path = "/api/jobs/#/merge-lora", .handle = use_tool },
    { .path = NULL },
};
