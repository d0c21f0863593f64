/* SPDX-License-Identifier: Apache-2.0 */
/* The tenants of a run: what each has done, words for one of them, and another list of them while the run goes on. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <train/config.h>
#include <train/history.h>

#include "common/json_out.h"
#include "ui/control.h"
#include "ui/http.h"
#include "ui/jobs.h"
#include "ui/launch.h"
#include "ui/progress.h"
#include "ui/tenants.h"

/* ---- what they have done */

/* The text of its last note; NULL: there is none. */
static json_t *last_note(const struct train_folder *f)
{
    for (size_t i = json_array_size(f->events); i-- > 0;) {
        const json_t *o = json_array_get(f->events, i);
        if (strcmp(job_text(o, "event"), "note") == 0)
            return json_incref(json_object_get(o, "text"));
    }
    return NULL;
}

static json_t *one_tenant(const json_t *job, const char *name)
{
    char folder[PATH_MAX], metrics[PATH_MAX];
    struct train_folder f;
    struct fsdpck_error err = { 0 };
    if (!tenant_folder(job, name, folder) || !job_metrics_in(job, folder, metrics) ||
        train_folder_read(folder, 0, &f, &err))
        return NULL;
    json_t *o = progress_values(metrics, f.nsteps);
    json_out_put(o, "name", json_out_text(name));
    json_out_put(o, "state", json_string(train_folder_state(&f)));
    json_t *note = last_note(&f);
    if (note)
        json_out_put(o, "note", note);
    train_folder_free(&f);
    return o;
}

static json_t *all_tenants(const json_t *job)
{
    size_t i;
    json_t *name, *one, *names = tenant_names(job), *list = json_array();
    json_array_foreach (names, i, name)
        if ((one = one_tenant(job, json_string_value(name))))
            json_out_append(list, one);
    json_decref(names);
    return list;
}

static struct MHD_Response *list_tenants(struct request *r, unsigned *status)
{
    struct fsdpck_error err = { 0 };
    json_t *job = jobs_get(r->ui->sql, r->id, &err);
    json_t *list = job ? all_tenants(job) : NULL;
    json_decref(job);
    return list ? http_json(json_pack("{s:o}", "tenants", list), status) : http_error(status, &err);
}

/* ---- while the run goes on */

/* The job, which runs; NULL and *err otherwise. */
static json_t *running_job(struct request *r, struct fsdpck_error *err)
{
    json_t *job = jobs_get(r->ui->sql, r->id, err);
    if (!job || job_is(job, "running"))
        return job;
    json_decref(job);
    fsdpck_error_set(err, FSDPCK_ERR_EXISTS, "the job", "it does not run");
    return NULL;
}

static bool is_word(const char *word)
{
    static const char *const words[] = { "save", "sample", "pause", "resume", "stop" };
    for (size_t i = 0; word && i < sizeof words / sizeof *words; i++)
        if (strcmp(word, words[i]) == 0)
            return true;
    return false;
}

/* { "tenant": NAME, "word": "save", "sample", "pause", "resume" or "stop" } */
static struct MHD_Response *tell_tenant(struct request *r, unsigned *status)
{
    char folder[PATH_MAX];
    struct fsdpck_error err = { 0 };
    const char *name = json_string_value(json_object_get(r->json, "tenant")),
               *word = json_string_value(json_object_get(r->json, "word"));
    if (!is_word(word))
        return http_refuse(status, MHD_HTTP_BAD_REQUEST, "word: one of save, sample, pause, resume and stop is wanted");
    json_t *job = running_job(r, &err);
    if (!job)
        return http_error(status, &err);
    const bool known = tenant_folder(job, name, folder);
    json_decref(job);
    if (!known)
        return http_refuse(status, MHD_HTTP_NOT_FOUND, "tenant: the run has none of this name");
    return control_write(folder, word, &err) ? http_error(status, &err) : http_done(status);
}

/* Whether the run could begin with this config. */
static int check_config(const json_t *config, struct fsdpck_error *err)
{
    struct train_config parsed;
    struct train_tenant *tenants;
    size_t n;
    int rc = train_config_take("the config", json_deep_copy(config), &parsed, err);
    if (rc)
        return rc;
    rc = train_config_tenants(&parsed, &tenants, &n, err);
    if (!rc)
        train_config_tenants_free(tenants, n);
    train_config_free(&parsed);
    return rc;
}

/* The job's config with other tenants, as text that the caller frees. */
static int with_tenants(const json_t *job, const json_t *tenants, char **out, struct fsdpck_error *err)
{
    json_t *config = json_loads(job_text(job, "config"), 0, NULL);
    int rc = 0;
    *out = NULL;
    if (!json_object_get(config, "tenants"))
        rc = fsdpck_error_set(err, FSDPCK_ERR_EXISTS, "the job", "it has no tenants: its config is read once");
    else if (!json_is_array(tenants))
        rc = fsdpck_error_set(err, FSDPCK_ERR_USAGE, "tenants", "a list of objects is wanted");
    else if (json_object_set(config, "tenants", (json_t *)tenants))
        rc = fsdpck_error_nomem(err, 1);
    if (!rc)
        rc = check_config(config, err);
    if (!rc && !(*out = json_dumps(config, JSON_INDENT(2))))
        rc = fsdpck_error_nomem(err, 1);
    json_decref(config);
    return rc;
}

/* { "tenants": [ … ] }: the run ends those that are left out, and begins or goes on with the others. */
static struct MHD_Response *set_tenants(struct request *r, unsigned *status)
{
    struct fsdpck_error err = { 0 };
    char *text = NULL;
    json_t *job = running_job(r, &err);
    int rc = job ? with_tenants(job, json_object_get(r->json, "tenants"), &text, &err) : err.code;
    if (!rc)
        rc = control_check(job_text(job, "output_dir"), &err);
    if (!rc)
        rc = jobs_reconfigure(r->ui->sql, r->id, text, &err);
    if (!rc)
        rc = launch_write_config(r->ui, r->id, text, &err);
    if (!rc)
        rc = control_write(job_text(job, "output_dir"), "reload", &err);
    free(text);
    json_decref(job);
    return rc ? http_error(status, &err) : http_done(status);
}

const struct route routes_tenants[] = {
    { .method = "GET", .path = "/api/jobs/#/tenants", .handle = list_tenants },
    { .method = "POST", .path = "/api/jobs/#/tenants", .handle = tell_tenant },
    { .method = "PUT", .path = "/api/jobs/#/tenants", .handle = set_tenants },
    { .path = NULL },
};
