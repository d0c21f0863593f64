/* SPDX-License-Identifier: Apache-2.0 */
/* Runs in the folder of runs that were started from a terminal. They can become jobs. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <train/history.h>

#include "common/json_out.h"
#include "ui/draft.h"
#include "ui/http.h"
#include "ui/jobs.h"

enum { MOST_FOUND = 200 };

static int is_visible(const struct dirent *e)
{
    return e->d_name[0] != '.';
}

static bool folder_path(const struct ui *ui, const char *name, char path[PATH_MAX])
{
    return snprintf(path, PATH_MAX, "%.3900s/%.190s", ui->dir, name) > 0;
}

/* The last recorded start that has a config, borrowed from f; NULL if there is none. */
static const json_t *recorded_start(const struct train_folder *f)
{
    size_t i;
    const json_t *e, *last = NULL;
    json_array_foreach (f->events, i, e)
        if (json_is_object(json_object_get(e, "config")))
            last = e;
    return last;
}

static json_t *found_json(struct ui *ui, const char *name)
{
    char path[PATH_MAX];
    struct train_folder f;
    struct fsdpck_error err = { 0 };
    json_t *o = NULL;
    folder_path(ui, name, path);
    if (jobs_have_folder(ui->sql, path) || train_folder_read(path, 0, &f, &err))
        return NULL;
    if (recorded_start(&f))
        o = json_pack("{s:o, s:s}", "name", json_out_text(name), "state", train_folder_state(&f));
    train_folder_free(&f);
    return o;
}

static struct MHD_Response *list_found(struct request *r, unsigned *status)
{
    struct dirent **list = NULL;
    json_t *runs = json_array();
    const int n = scandir(r->ui->dir, &list, is_visible, alphasort);
    for (int i = 0; i < n; i++) {
        json_t *o = json_array_size(runs) < MOST_FOUND ? found_json(r->ui, list[i]->d_name) : NULL;
        if (o)
            json_out_append(runs, o);
        free(list[i]);
    }
    free(list);
    return http_json(json_pack("{s:o}", "runs", runs), status);
}

/* Makes a draft of an existing run: its recorded config, with its present folder as output_dir. */
static int draft_found(struct ui *ui, const char *name, const char *path, const json_t *start, struct draft *out,
                       struct fsdpck_error *err)
{
    const json_t *machine = json_object_get(start, "machine");
    const json_int_t ranks = json_integer_value(json_object_get(machine, "ranks"));
    json_t *config = json_deep_copy(json_object_get(start, "config"));
    json_out_put(config, "output_dir", json_string(path));
    json_t *body = json_pack("{s:s, s:I, s:o, s:[O]}", "name", name, "ranks", ranks > 0 ? ranks : 1, "config", config,
                             "devices", json_array_get(ui->devices, 0));
    const int rc = body ? draft_read(ui, body, ui->cwd, out, err) : fsdpck_error_nomem(err, 1);
    json_decref(body);
    return rc;
}

static int take_over(struct ui *ui, const char *name, int64_t *id, struct fsdpck_error *err)
{
    char path[PATH_MAX];
    struct train_folder f;
    struct draft draft = { 0 };
    folder_path(ui, name, path);
    int rc = train_folder_read(path, 0, &f, err);
    if (rc)
        return rc;
    const json_t *start = recorded_start(&f);
    if (f.trains)
        rc = fsdpck_error_set(err, FSDPCK_ERR_EXISTS, path, "the run is under way; it was not started here");
    else if (!start)
        rc = fsdpck_error_set(err, FSDPCK_ERR_MISSING, path, "its events record no config");
    if (!rc)
        rc = draft_found(ui, name, path, start, &draft, err);
    if (!rc)
        rc = jobs_add(ui->sql, &draft.job, id, err);
    if (!rc)
        rc = jobs_ended(ui->sql, *id, train_folder_state(&f), -1, "", err);
    draft_free(&draft);
    train_folder_free(&f);
    return rc;
}

/* { "name": … }: a name that GET /api/found listed */
static struct MHD_Response *add_found(struct request *r, unsigned *status)
{
    int64_t id;
    struct fsdpck_error err = { 0 };
    const char *name = json_string_value(json_object_get(r->json, "name"));
    if (!name || !*name || *name == '.' || strchr(name, '/') || strlen(name) > 190)
        return http_refuse(status, MHD_HTTP_BAD_REQUEST, "name: a folder of the list is wanted");
    if (take_over(r->ui, name, &id, &err))
        return http_error(status, &err);
    ui_poke(r->ui);
    *status = MHD_HTTP_CREATED;
    return http_json(json_pack("{s:I}", "id", (json_int_t)id), status);
}

const struct route routes_found[] = {
    { .method = "GET", .path = "/api/found", .handle = list_found },
    { .method = "POST", .path = "/api/found", .handle = add_found },
    { .path = NULL },
};
